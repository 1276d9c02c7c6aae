//! The documentation, written by the tables themselves.

use std::fmt::Write as _;

use serde_json::Value;

use crate::decode::FieldDoc;
use crate::flags::{self, Flag};
use crate::gates::{Gate, Stage};
use crate::inert;
use crate::types::{API_VERSION, KIND, KubeletConfiguration};

const GENERATED: &str = "<!-- Written by the krablet-config crate; `KRABLET_UPDATE_DOCS=1 cargo test -p krablet-config` rewrites it. -->";

fn sorted_flags() -> Vec<&'static Flag> {
    let mut flags: Vec<_> = flags::all().collect();
    flags.sort_by_key(|flag| flag.name);
    flags
}

/// Text inside a table cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "&lt;")
}

fn code(text: &str) -> String {
    if text.is_empty() {
        String::new()
    } else {
        format!("`{}`", text.replace('|', "\\|"))
    }
}

/// What a setting does, and what is done instead where it is not acted on.
fn meaning(help: &str, mark: Option<String>) -> String {
    match mark {
        Some(mark) => format!("{} {mark}", cell(help)),
        None => cell(help),
    }
}

fn flag_meaning(flag: &Flag) -> String {
    meaning(flag.help, inert::mark_of_flag(flag.name, flag.field))
}

/// `docs/flags.md`.
#[must_use]
pub fn render_flags_md() -> String {
    let (current, deprecated): (Vec<_>, Vec<_>) = sorted_flags()
        .into_iter()
        .partition(|flag| flag.deprecation().is_none());
    let mut out = format!(
        "# Flags\n\n{GENERATED}\n\n\
         Flags are those of the kubelet, so unit files and installers work unchanged. `--name=value` and `--name value` are the\n\
         same; a switch stands alone or as `--name=false`; underscores count as dashes; the last one given wins. A flag wins over\n\
         the configuration file, and feature gates are merged one by one. An unknown flag, a word that is no flag and a bad value\n\
         end the start with one line that names it.\n\n\
         Defaults are those of a start without a configuration file; with one, the field's default counts (see\n\
         [configuration.md](configuration.md)).\n\n## Flags to use\n\n| flag | value | default | meaning |\n|---|---|---|---|\n"
    );
    for flag in current {
        let name = match flag.short {
            Some(short) => format!("`--{}`, `-{short}`", flag.name),
            None => format!("`--{}`", flag.name),
        };
        let _ = writeln!(
            out,
            "| {name} | {} | {} | {} |",
            cell(flag.kind()),
            code(&flag.default_text()),
            flag_meaning(flag)
        );
    }
    out.push_str(
        "\n## Deprecated flags\n\nStill accepted, each with a warning that says what to use instead.\n\n\
         | flag | value | default | meaning | instead |\n|---|---|---|---|---|\n",
    );
    for flag in deprecated {
        let instead = match flag.field {
            Some(field) => code(field),
            None => cell(&flag.deprecation().unwrap_or_default()),
        };
        let _ = writeln!(
            out,
            "| `--{}` | {} | {} | {} | {instead} |",
            flag.name,
            cell(flag.kind()),
            code(&flag.default_text()),
            flag_meaning(flag)
        );
    }
    out
}

/// `docs/configuration.md`.
#[must_use]
pub fn render_configuration_md() -> String {
    let mut out = format!(
        "# Configuration file\n\n{GENERATED}\n\n\
         The file of `--config` is a {KIND} of {API_VERSION}, as YAML (1.1, as Go reads it) or JSON:\n\n\
         ```yaml\napiVersion: {API_VERSION}\nkind: {KIND}\nstaticPodPath: /etc/kubernetes/manifests\ncgroupDriver: systemd\n```\n\n\
         Values win in this order, weakest first: defaults; the file of `--config`; the `*.conf` files under `--config-dir`, in\n\
         lexical order with sub-directories, each merged over the ones before (mappings key by key, lists whole, `null` goes back\n\
         to the default); flags. Relative paths in the file of `--config` start at its directory.\n\n\
         - An unknown field, or one written twice, is a warning that names file, line and field. A value of the wrong type ends\n\x20 the start with all such places named.\n\
         - A duration is written as Go does (`1h2m3.5s`, `100ms`). Where a default is shown, `0s`, `0` and `\"\"` mean that default,\n\x20 unless the field is marked with *, where only leaving it out does.\n\
         - Without any configuration file the agent is as open as it always was: `readOnlyPort` 10255, anonymous requests on,\n\x20 token check off, `authorization.mode` AlwaysAllow, and no hard eviction thresholds.\n\
         - `runOnce` works here, although upstream refuses it.\n\
         - What is marked as *not acted on* is read and checked, so that a configuration can be kept, and has no effect; the text says\n\x20 what is done instead. At the start one line of the log names those that are set to something else than their default.\n"
    );
    for (title, fields) in KubeletConfiguration::docs() {
        let _ = write!(
            out,
            "\n## {title}\n\n| field | type | default | meaning |\n|---|---|---|---|\n"
        );
        for field in fields {
            out.push_str(&field_row(&field));
        }
    }
    out
}

fn field_row(field: &FieldDoc) -> String {
    let default = match &field.default {
        None => String::new(),
        Some(Value::String(text)) => code(text),
        Some(value) => code(&value.to_string()),
    };
    let mark = if field.default_when_absent { "*" } else { "" };
    format!(
        "| `{}` | {} | {default}{mark} | {} |\n",
        field.name,
        field.kind,
        meaning(&field.help, inert::mark_of_field(&field.name))
    )
}

/// `docs/feature-gates.md`.
#[must_use]
pub fn render_feature_gates_md() -> String {
    let mut out = format!(
        "# Feature gates\n\n{GENERATED}\n\n\
         Set with `featureGates` in the configuration file or `--feature-gates=Name=true,...`; the flag wins gate by gate. The\n\
         names are those a kubelet of version 1.36 knows, also where the feature belongs to another component. An unknown name,\n\
         a locked gate set to the other value, and a gate that is on while one it needs is off end the start. Setting a GA or\n\
         deprecated gate is a warning. `AllAlpha` and `AllBeta` set every gate of their stage that is not set by name.\n\
         krablet does not have the features of the gates marked *absent*: they can be set and have no effect, and\n\
         `kubernetes_feature_enabled` tells them as off.\n\n\
         | gate | stage | default | needs |\n|---|---|---|---|\n"
    );
    for spec in Gate::all() {
        let default = if spec.default { "on" } else { "off" };
        let lock = if spec.locked { ", locked" } else { "" };
        let absent = if spec.absent { ", *absent*" } else { "" };
        let needs: Vec<_> = spec.needs.iter().map(|gate| gate.name()).collect();
        let _ = writeln!(
            out,
            "| {} | {} | {default}{lock}{absent} | {} |",
            spec.name,
            spec.stage.name(),
            needs.join(", ")
        );
    }
    out
}

/// The text of `--help`.
#[must_use]
pub fn render_help(program: &str) -> String {
    let mut out = format!("Usage:\n  {program} [flags]\n\nFlags:\n");
    for flag in sorted_flags() {
        let short = flag
            .short
            .map_or_else(|| "    ".to_owned(), |short| format!("-{short}, "));
        let value = if flag.is_switch() {
            String::new()
        } else {
            format!(" <{}>", flag.kind())
        };
        let default = match flag.default_text() {
            text if text.is_empty() || text == "false" => String::new(),
            text => format!(" (default {text})"),
        };
        let _ = writeln!(out, "  {short}--{}{value}", flag.name);
        let inert = match inert::mark_of_flag(flag.name, flag.field) {
            Some(mark) => format!(" {}", mark.replace("**", "")),
            None => String::new(),
        };
        let deprecated = flag
            .deprecation()
            .map_or_else(String::new, |instead| format!(" (DEPRECATED: {instead})"));
        let _ = writeln!(out, "          {}{inert}{default}{deprecated}", flag.help);
        if flag.name == "feature-gates" {
            out.push_str(&gate_help());
        }
    }
    out
}

/// The gates worth setting: those not yet finished.
fn gate_help() -> String {
    let mut out = String::from("          Gates:\n");
    for spec in Gate::all() {
        if matches!(spec.stage, Stage::Alpha | Stage::Beta) {
            let _ = writeln!(
                out,
                "            {}=true|false ({}, default {})",
                spec.name,
                spec.stage.name(),
                spec.default
            );
        }
    }
    out
}
