//! Images made on the spot, since no registry is at hand: `pause`, and `tool` with busybox beside it.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::archive::{Image, Tar, docker_archive, image_config};
use crate::{cache, packages, parts};

/// The sandbox image.
pub const PAUSE: &str = "krablet.local/pause:1";
/// The tool image; its program is `/tool`, see `testbed/tool/main.go`.
pub const TOOL: &str = "krablet.local/tool:v1";
/// The same with other content, for tests of image changes.
pub const TOOL_V2: &str = "krablet.local/tool:v2";

/// Busybox applets that get a name of their own in the tool image.
const APPLETS: [&str; 33] = [
    "ash", "cat", "chmod", "cp", "date", "dd", "df", "echo", "env", "false", "grep", "head",
    "hostname", "id", "ip", "kill", "ls", "mkdir", "mount", "nc", "nslookup", "printf", "ps", "rm",
    "sed", "sh", "sleep", "stat", "tail", "tar", "test", "true", "wget",
];

/// A tool image under another name, with differences a test asks for.
#[derive(Clone, Debug, Default)]
pub struct Variant {
    /// The full name, such as `krablet.local/tool:v3`. It is also written to `/etc/image` in the
    /// image, so two names never have the same content.
    pub reference: String,
    /// Files added or replaced: path, mode, content.
    pub files: Vec<(String, u32, Vec<u8>)>,
    /// Fields of the image's `config` object to set, such as `User`, `Env`, `Cmd`, `StopSignal`.
    pub config: Value,
}

impl Variant {
    /// A tool image that differs by its name alone.
    pub fn named(reference: &str) -> Self {
        Self {
            reference: reference.to_owned(),
            ..Self::default()
        }
    }
}

/// The archive with the images every bed has, ready for `ctr images import`.
pub fn standard() -> Result<PathBuf> {
    archive(
        "images",
        true,
        &[Variant::named(TOOL), Variant::named(TOOL_V2)],
    )
}

/// An archive with these variants of the tool image.
pub fn variants(variants: &[Variant]) -> Result<PathBuf> {
    archive("images-extra", false, variants)
}

fn archive(name: &str, with_pause: bool, variants: &[Variant]) -> Result<PathBuf> {
    let parts = [
        tool()?,
        pause()?,
        PathBuf::from(format!("{with_pause} {variants:?}")),
    ];
    let recipe = [include_str!("images.rs"), include_str!("archive.rs")];
    let key = parts.iter().map(|path| path.as_os_str().as_encoded_bytes());
    let key = cache::digest(key.chain(recipe.map(str::as_bytes)));
    let [tool, pause, _] = parts;
    let dir = cache::entry(name, &key, |dir| {
        let bytes = build(
            &fs::read(tool.join("tool"))?,
            &fs::read(pause.join("pause"))?,
            with_pause,
            variants,
        )?;
        Ok(fs::write(dir.join("images.tar"), bytes)?)
    })?;
    Ok(dir.join("images.tar"))
}

fn build(tool: &[u8], pause: &[u8], with_pause: bool, variants: &[Variant]) -> Result<Vec<u8>> {
    let base = base_layer(tool)?;
    let mut pause_layer = Tar::default();
    pause_layer.file("/pause", 0o755, pause)?;
    let pause_layer = pause_layer.finish();
    let tops = variants.iter().map(top_layer).collect::<Result<Vec<_>>>()?;
    let mut images = Vec::new();
    if with_pause {
        images.push(Image {
            reference: PAUSE,
            config: json!({"Entrypoint": ["/pause"]}),
            layers: vec![&pause_layer],
        });
    }
    for (variant, top) in variants.iter().zip(&tops) {
        images.push(Image {
            reference: &variant.reference,
            config: tool_config(variant),
            layers: vec![&base, top],
        });
    }
    docker_archive(&images)
}

fn tool_config(variant: &Variant) -> Value {
    let mut config = json!({
        "Entrypoint": ["/tool"],
        "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
        "WorkingDir": "/",
    });
    if let (Some(all), Some(set)) = (config.as_object_mut(), variant.config.as_object()) {
        all.extend(set.clone());
    }
    config
}

/// A variant in its parts, as registries hold them.
pub(crate) struct Layers {
    pub config: Vec<u8>,
    /// As tar files.
    pub layers: Vec<Vec<u8>>,
}

pub(crate) fn layers(variant: &Variant) -> Result<Layers> {
    let layers = vec![
        base_layer(&fs::read(tool()?.join("tool"))?)?,
        top_layer(variant)?,
    ];
    let sums: Vec<String> = layers.iter().map(|layer| cache::sha256(layer)).collect();
    Ok(Layers {
        config: image_config(&tool_config(variant), &sums)?,
        layers,
    })
}

fn base_layer(tool: &[u8]) -> Result<Vec<u8>> {
    let mut tar = Tar::default();
    for (dir, mode) in [
        ("/bin", 0o755),
        ("/etc", 0o755),
        ("/proc", 0o555),
        ("/sys", 0o555),
        ("/dev", 0o755),
        ("/tmp", 0o1777),
    ] {
        tar.dir(dir, mode)?;
    }
    tar.file("/tool", 0o755, tool)?;
    tar.file("/bin/busybox", 0o755, &busybox()?)?;
    for applet in APPLETS {
        tar.symlink(&format!("/bin/{applet}"), "busybox")?;
    }
    tar.file("/etc/passwd", 0o644, b"root:x:0:0:root:/:/bin/sh\nuser:x:1000:1000:user:/tmp:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n")?;
    tar.file(
        "/etc/group",
        0o644,
        b"root:x:0:\nuser:x:1000:\nextra:x:2000:user\nnogroup:x:65534:\n",
    )?;
    Ok(tar.finish())
}

fn top_layer(variant: &Variant) -> Result<Vec<u8>> {
    let mut tar = Tar::default();
    tar.file(
        "/etc/image",
        0o644,
        format!("{}\n", variant.reference).as_bytes(),
    )?;
    for (path, mode, content) in &variant.files {
        tar.file(path, *mode, content)?;
    }
    Ok(tar.finish())
}

fn busybox() -> Result<Vec<u8>> {
    packages::ensure(&[packages::BUSYBOX])?;
    let path = packages::find("busybox").context("no busybox")?;
    let bytes = fs::read(&path)?;
    // A dynamically linked one would not start in an image that holds nothing else.
    let loader = b"/ld-linux";
    if bytes.windows(loader.len()).any(|window| window == loader) {
        anyhow::bail!(
            "{} is not static; install busybox-static in its place",
            path.display()
        );
    }
    Ok(bytes)
}

fn tool() -> Result<PathBuf> {
    let source = cache::sources().join("tool");
    let files = cache::tree(&source)?;
    let key = cache::digest(
        files
            .iter()
            .flat_map(|(name, text)| [name.as_bytes(), text]),
    );
    cache::entry("tool", &key, |dir| {
        parts::go_build(&source, "-s -w", &dir.join("tool"), &["."])
    })
}

fn pause() -> Result<PathBuf> {
    packages::ensure(&[packages::GCC])?;
    let source = cache::sources().join("pause/pause.c");
    let text = fs::read(&source).with_context(|| format!("reading {}", source.display()))?;
    cache::entry("pause", &cache::digest([text.as_slice()]), |dir| {
        let mut gcc = Command::new("gcc");
        gcc.args(["-static", "-Os", "-s", "-Wall", "-o"])
            .arg(dir.join("pause"))
            .arg(&source);
        cache::run(&mut gcc).map(drop)
    })
}
