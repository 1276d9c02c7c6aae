//! The two archive formats images travel in: tar, and the docker-archive made of it.

use anyhow::{Context, Result};
use serde_json::json;

use crate::cache::sha256;

/// A tar file in memory, written in the ustar format; made for small images, not for streams.
#[derive(Default)]
pub struct Tar {
    bytes: Vec<u8>,
}

impl Tar {
    pub fn dir(&mut self, path: &str, mode: u32) -> Result<()> {
        self.entry(
            &format!("{}/", path.trim_end_matches('/')),
            mode,
            b'5',
            "",
            &[],
        )
    }

    pub fn file(&mut self, path: &str, mode: u32, content: &[u8]) -> Result<()> {
        self.entry(path, mode, b'0', "", content)
    }

    pub fn symlink(&mut self, path: &str, target: &str) -> Result<()> {
        self.entry(path, 0o777, b'2', target, &[])
    }

    fn entry(&mut self, path: &str, mode: u32, kind: u8, link: &str, content: &[u8]) -> Result<()> {
        let path = path.trim_start_matches('/');
        let mut header = [0_u8; 512];
        let mut put = |at: usize, length: usize, value: &[u8]| -> Result<()> {
            let place = header
                .get_mut(at..at + length)
                .and_then(|field| field.get_mut(..value.len()));
            place
                .with_context(|| format!("{path} does not fit a tar header"))?
                .copy_from_slice(value);
            Ok(())
        };
        put(0, 100, path.as_bytes())?;
        put(100, 8, format!("{mode:07o}").as_bytes())?;
        put(108, 8, b"0000000")?;
        put(116, 8, b"0000000")?;
        put(124, 12, format!("{:011o}", content.len()).as_bytes())?;
        put(136, 12, b"00000000000")?;
        put(148, 8, b"        ")?;
        put(156, 1, &[kind])?;
        put(157, 100, link.as_bytes())?;
        put(257, 8, b"ustar\x0000")?;
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        if let Some(field) = header.get_mut(148..155) {
            field.copy_from_slice(format!("{sum:06o}\0").as_bytes());
        }
        self.bytes.extend_from_slice(&header);
        self.bytes.extend_from_slice(content);
        self.bytes.resize(self.bytes.len().next_multiple_of(512), 0);
        Ok(())
    }

    pub fn finish(mut self) -> Vec<u8> {
        self.bytes.resize(self.bytes.len() + 1024, 0);
        self.bytes
    }
}

/// One image of an archive: its name, its `config` object, and its layers as tar files.
pub struct Image<'a> {
    pub reference: &'a str,
    pub config: serde_json::Value,
    pub layers: Vec<&'a [u8]>,
}

/// A docker-archive with all the images; a layer two of them share is stored once.
pub fn docker_archive(images: &[Image<'_>]) -> Result<Vec<u8>> {
    let mut tar = Tar::default();
    let mut stored = std::collections::BTreeSet::new();
    let mut manifest = Vec::new();
    for image in images {
        let ids: Vec<String> = image.layers.iter().map(|layer| sha256(layer)).collect();
        for (id, layer) in ids.iter().zip(&image.layers) {
            if stored.insert(id.clone()) {
                tar.file(&format!("{id}.tar"), 0o644, layer)?;
            }
        }
        let config = image_config(&image.config, &ids)?;
        let name = format!("{}.json", sha256(&config));
        if stored.insert(name.clone()) {
            tar.file(&name, 0o644, &config)?;
        }
        manifest.push(json!({
            "Config": name,
            "RepoTags": [image.reference],
            "Layers": ids.iter().map(|id| format!("{id}.tar")).collect::<Vec<_>>(),
        }));
    }
    tar.file("manifest.json", 0o644, &serde_json::to_vec(&manifest)?)?;
    Ok(tar.finish())
}

/// The configuration of an image whose layers have these sums.
pub fn image_config(config: &serde_json::Value, layers: &[String]) -> Result<Vec<u8>> {
    let sums: Vec<String> = layers.iter().map(|id| format!("sha256:{id}")).collect();
    let config = json!({
        "architecture": architecture(),
        "os": "linux",
        "created": "2024-01-01T00:00:00Z",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": sums},
    });
    Ok(serde_json::to_vec(&config)?)
}

/// The machine's architecture in the words of image configs.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_tar_reads_what_we_write() {
        let mut tar = Tar::default();
        tar.dir("/etc", 0o755).unwrap();
        tar.file("/etc/name", 0o640, b"crab\n").unwrap();
        tar.symlink("/bin/sh", "busybox").unwrap();
        let path = std::env::temp_dir().join(format!("krablet-tar-{}", std::process::id()));
        std::fs::write(&path, tar.finish()).unwrap();
        let list = std::process::Command::new("tar")
            .arg("-tvf")
            .arg(&path)
            .output()
            .unwrap();
        let text = std::process::Command::new("tar")
            .arg("-xOf")
            .arg(&path)
            .arg("etc/name")
            .output()
            .unwrap();
        std::fs::remove_file(&path).unwrap();
        let list = String::from_utf8(list.stdout).unwrap();
        assert!(
            list.contains("drwxr-xr-x")
                && list.contains("-rw-r-----")
                && list.contains("bin/sh -> busybox"),
            "{list}"
        );
        assert_eq!(text.stdout, b"crab\n");
    }

    #[test]
    fn a_path_too_long_for_the_format_is_refused() {
        assert!(Tar::default().file(&"x".repeat(101), 0o644, b"").is_err());
    }
}
