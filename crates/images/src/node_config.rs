//! The node's own files of registry credentials. They are read whenever an image is to be pulled, so that one
//! who mends such a file need not wait for a cache to forget.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use krablet_linux::Files;

use crate::docker_config::{DockerConfig, DockerConfigError, read_config_json, read_dockercfg};
use crate::keyring::Keyring;

/// More than any file of credentials has.
const LIMIT: usize = 10 << 20;

/// Where to look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SearchPaths {
    /// The agent's root directory.
    pub root_dir: PathBuf,
    pub working_dir: PathBuf,
    pub home: PathBuf,
}

impl SearchPaths {
    fn config_json(&self) -> [PathBuf; 4] {
        let dirs = [
            self.root_dir.clone(),
            self.working_dir.clone(),
            self.home.join(".docker"),
            PathBuf::from("/.docker"),
        ];
        dirs.map(|dir| dir.join("config.json"))
    }

    fn dockercfg(&self) -> [PathBuf; 4] {
        let dirs = [
            self.root_dir.clone(),
            self.working_dir.clone(),
            self.home.clone(),
            PathBuf::from("/"),
        ];
        dirs.map(|dir| dir.join(".dockercfg"))
    }
}

#[derive(Clone)]
pub struct NodeConfig {
    paths: SearchPaths,
    files: Arc<dyn Files>,
}

type Read = fn(&[u8]) -> Result<DockerConfig, DockerConfigError>;

impl NodeConfig {
    pub fn new(paths: SearchPaths, files: Arc<dyn Files>) -> Self {
        Self { paths, files }
    }

    /// The first file that can be used counts, alone; the newer kind comes before the older.
    pub async fn keyring(&self) -> Keyring {
        let newer = self
            .paths
            .config_json()
            .map(|p| (p, read_config_json as Read));
        let older = self.paths.dockercfg().map(|p| (p, read_dockercfg as Read));
        let mut ring = Keyring::default();
        for (path, read) in newer.into_iter().chain(older) {
            if let Some(config) = self.try_file(&path, read).await {
                ring.add(None, &config);
                break;
            }
        }
        ring
    }

    async fn try_file(&self, path: &Path, read: Read) -> Option<DockerConfig> {
        let bytes = match self.files.read(path, LIMIT).await {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => {
                tracing::debug!(path = %path.display(), %error, "Could not read a file of registry credentials");
                return None;
            }
        };
        match read(&bytes) {
            Ok(config) => Some(config),
            Err(error) => {
                tracing::debug!(path = %path.display(), %error, "A file of registry credentials cannot be used");
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use krablet_linux::HostFiles;

    use super::*;

    fn put(dir: &Path, name: &str, user: &str, whole: bool) {
        let auths = serde_json::json!({"r.io": {"username": user, "password": "p"}});
        let text = match whole {
            true => serde_json::json!({"auths": auths}).to_string(),
            false => auths.to_string(),
        };
        let path = dir.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    #[tokio::test]
    async fn the_first_usable_file_counts() {
        let dir = tempfile::tempdir().unwrap();
        let [root, cwd, home] = ["root", "cwd", "home"].map(|d| dir.path().join(d));
        let config = NodeConfig::new(
            SearchPaths {
                root_dir: root.clone(),
                working_dir: cwd.clone(),
                home: home.clone(),
            },
            Arc::new(HostFiles),
        );
        let user = async || {
            let ring = config.keyring().await;
            let found = ring.lookup("r.io/a");
            found.first().map(|c| c.username.expose().to_owned())
        };
        assert_eq!(user().await, None);
        put(&home, ".dockercfg", "old", false);
        assert_eq!(user().await.as_deref(), Some("old"));
        put(&home, ".docker/config.json", "home", true);
        assert_eq!(user().await.as_deref(), Some("home"));
        put(&cwd, "config.json", "cwd", true);
        assert_eq!(user().await.as_deref(), Some("cwd"));
        put(&root, "config.json", "root", true);
        assert_eq!(user().await.as_deref(), Some("root"));
        std::fs::write(root.join("config.json"), "{broken").unwrap();
        assert_eq!(user().await.as_deref(), Some("cwd"));
        std::fs::write(root.join("config.json"), "{}").unwrap();
        assert_eq!(user().await, None, "a file without logins ends the search");
    }
}
