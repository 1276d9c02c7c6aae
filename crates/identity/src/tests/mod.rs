//! The parts together, on a disk in memory and with a server in memory, in virtual time.

mod begin;
mod join;
mod rotation;
mod serving;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use krablet_linux::fake::MemoryFiles;

use crate::CertStore;

const NODE: &str = "node-1";
const PKI: &str = "/var/lib/kubelet/pki";
const KUBECONFIG: &str = "/etc/kubernetes/kubelet.conf";
const BOOTSTRAP: &str = "/etc/kubernetes/bootstrap-kubelet.conf";

async fn store(files: &MemoryFiles) -> CertStore {
    CertStore::open(PKI.into(), Arc::new(files.clone()))
        .await
        .unwrap()
}

fn pki(name: &str) -> PathBuf {
    Path::new(PKI).join(name)
}

/// Certificates on disk, the current one and those beside it.
fn dated(files: &MemoryFiles) -> usize {
    let paths = files.paths().into_iter();
    let dated = paths.filter(|p| p.to_string_lossy().contains("/kubelet-client-20"));
    dated.count()
}
