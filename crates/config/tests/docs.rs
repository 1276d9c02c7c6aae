//! The checked-in documentation is what the tables say. `KRABLET_UPDATE_DOCS=1` rewrites it.

use std::path::Path;

#[test]
fn documentation_is_up_to_date() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    for (name, text) in [
        ("flags.md", krablet_config::render_flags_md()),
        (
            "configuration.md",
            krablet_config::render_configuration_md(),
        ),
        (
            "feature-gates.md",
            krablet_config::render_feature_gates_md(),
        ),
    ] {
        let path = docs.join(name);
        if std::env::var_os("KRABLET_UPDATE_DOCS").is_some() {
            std::fs::create_dir_all(&docs).unwrap();
            std::fs::write(&path, &text).unwrap();
        }
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            found == text,
            "docs/{name} is out of date; run KRABLET_UPDATE_DOCS=1 cargo test -p krablet-config"
        );
    }
}

#[test]
fn help_names_every_flag_once() {
    let help = krablet_config::render_help("kubelet");
    for flag in krablet_config::flags::all() {
        let shown = help
            .lines()
            .filter(|line| {
                let line = line.trim_start();
                let line = line.split_once(", --").map_or(line, |(_, rest)| rest);
                let name = line.trim_start_matches("--");
                name.split(' ').next() == Some(flag.name)
            })
            .count();
        assert_eq!(shown, 1, "--{}", flag.name);
    }
}
