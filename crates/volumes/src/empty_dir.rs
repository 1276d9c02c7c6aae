//! Empty directories: on the node's disk, or a tmpfs in memory.

use std::io;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use krablet_linux::{Files, Mounts};
use krablet_pod::Quantity;
use krablet_pod::api::{PodSpec, ResourceRequirements, Volume};
use krablet_pod::containers::{init_containers, is_sidecar};

use crate::error::SetUpError;
use crate::listing::is_mounted;
use crate::plugin::{
    MountedVolume, Source, Standing, VolumePlugin, VolumeRequest, escape, kind_of,
};
use crate::record::RecordedVolume;

const NAME: &str = "kubernetes.io/empty-dir";
/// Anybody in the pod may write, whoever its containers run as.
const MODE: u32 = 0o777;
/// A tmpfs starts with the sticky bit.
const MEMORY_MODE: u32 = 0o1777;
/// What an `fsGroup` adds: the group may do all, and new files belong to it.
const GROUP_MODE: u32 = 0o2770;
const HUGE_PAGES: &str = "HugePages";
const HUGE_PAGES_OF: &str = "HugePages-";
const META_MODE: u32 = 0o750;
const READY_MODE: u32 = 0o644;

pub struct EmptyDir {
    files: Arc<dyn Files>,
    mounts: Arc<dyn Mounts>,
    /// What all pods together may use; none leaves a volume without limit to the kernel's default.
    node_memory: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Medium {
    Disk,
    Memory,
    /// Of pages of this size in bytes.
    HugePages(u64),
}

impl EmptyDir {
    pub fn new(files: Arc<dyn Files>, mounts: Arc<dyn Mounts>, node_memory: Option<u64>) -> Self {
        Self {
            files,
            mounts,
            node_memory,
        }
    }

    /// Makes the directory and gives it its rights, once: what the pod itself does to it later stays. The mark is the
    /// kubelet's own, so either agent sees what the other finished.
    async fn make_once(
        &self,
        request: &VolumeRequest<'_>,
        dir: &Path,
        medium: Medium,
        mark: &str,
    ) -> Result<(), SetUpError> {
        let meta = request.root.plugins(request.uid);
        let meta = meta.join(escape(NAME)).join(mark);
        let ready = meta.join("ready");
        let finished = match self.files.lstat(&ready).await {
            Ok(_) => self.is_there(dir, medium).await?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => false,
            Err(e) => return Err(e.into()),
        };
        if !finished {
            self.make(request, dir, medium).await?;
            self.files.create_dir_all(&meta, META_MODE).await?;
            self.files.touch(&ready, READY_MODE).await?;
        }
        Ok(())
    }

    /// A directory for a volume of another kind, which fills it.
    pub(crate) async fn wrap(
        &self,
        request: &VolumeRequest<'_>,
        dir: &Path,
        medium: Medium,
    ) -> Result<(), SetUpError> {
        let mark = format!("wrapped_{}", request.name());
        self.make_once(request, dir, medium, &mark).await
    }

    async fn make(
        &self,
        request: &VolumeRequest<'_>,
        dir: &Path,
        medium: Medium,
    ) -> Result<(), SetUpError> {
        self.files.create_dir_all(dir, MODE).await?;
        let mode = match medium {
            Medium::Disk => MODE,
            Medium::Memory => {
                if !is_mounted(&*self.mounts, dir).await? {
                    let size = self.memory_size(request)?;
                    self.mounts.tmpfs(dir, size).await?;
                }
                MEMORY_MODE
            }
            Medium::HugePages(page_size) => {
                if !is_mounted(&*self.mounts, dir).await? {
                    self.mounts.hugetlbfs(dir, page_size).await?;
                }
                MODE
            }
        };
        match request.fs_group() {
            None => self.files.set_mode(dir, mode).await?,
            Some(group) => {
                let gid = group_of(group)?;
                // The mode second: a change of group takes the set-group bit away.
                self.files.set_group(dir, gid).await?;
                self.files.set_mode(dir, mode | GROUP_MODE).await?;
            }
        }
        Ok(())
    }

    fn memory_size(&self, request: &VolumeRequest<'_>) -> Result<Option<u64>, SetUpError> {
        let limit = match size_limit(request.volume) {
            None => None,
            Some(text) => Some(bytes(text).ok_or_else(|| SetUpError::SizeLimit(text.0.clone()))?),
        };
        let pod_limit = request.spec().and_then(pod_memory_limit);
        Ok(memory_size(self.node_memory, pod_limit, limit))
    }

    async fn is_there(&self, dir: &Path, medium: Medium) -> io::Result<bool> {
        match medium {
            Medium::Disk => match self.files.lstat(dir).await {
                Ok(_) => Ok(true),
                Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
                Err(e) => Err(e),
            },
            Medium::Memory | Medium::HugePages(_) => is_mounted(&*self.mounts, dir).await,
        }
    }
}

#[async_trait]
impl VolumePlugin for EmptyDir {
    fn name(&self) -> &'static str {
        NAME
    }

    fn supports(&self, source: &Source<'_>) -> bool {
        matches!(source, Source::Inline(volume) if kind_of(volume) == "emptyDir")
    }

    fn plan(&self, request: &VolumeRequest<'_>) -> Result<Option<RecordedVolume>, SetUpError> {
        let medium = medium(request.volume, request.spec())?;
        self.memory_size(request)?;
        Ok(Some(RecordedVolume {
            name: request.volume.name.clone(),
            plugin: NAME.to_owned(),
            path: request.relative_dir(NAME),
            mounted: medium != Medium::Disk,
            outside: None,
        }))
    }

    async fn set_up(&self, request: &VolumeRequest<'_>) -> Result<Standing, SetUpError> {
        let medium = medium(request.volume, request.spec())?;
        let dir = request.dir(NAME);
        let mark = &request.volume.name;
        self.make_once(request, &dir, medium, mark).await?;
        Ok(MountedVolume {
            spec_name: request.name().to_owned(),
            host_path: dir,
            read_only: false,
            se_linux_relabel: true,
            block: false,
            group: request.source.group(),
            plugin: NAME,
        }
        .into())
    }
}

/// A group as the kernel knows it.
pub(crate) fn group_of(group: i64) -> io::Result<u32> {
    u32::try_from(group).map_err(|_| io::Error::other(format!("fsGroup {group} is out of range")))
}

fn medium(volume: &Volume, spec: Option<&PodSpec>) -> Result<Medium, SetUpError> {
    let medium = volume.empty_dir.as_ref().and_then(|e| e.medium.as_deref());
    match medium.unwrap_or_default() {
        "" => Ok(Medium::Disk),
        "Memory" => Ok(Medium::Memory),
        huge if is_huge_pages(huge) => page_size(huge, spec).map(Medium::HugePages),
        other => Err(SetUpError::UnknownMedium(other.to_owned())),
    }
}

fn is_huge_pages(medium: &str) -> bool {
    medium == HUGE_PAGES || medium.starts_with(HUGE_PAGES_OF)
}

/// The size of pages that the pod asked for; of several, the medium must name one.
fn page_size(medium: &str, spec: Option<&PodSpec>) -> Result<u64, SetUpError> {
    let wrong = |why: &str| SetUpError::HugePages(format!("medium {medium}: {why}"));
    let named = match medium.strip_prefix(HUGE_PAGES_OF) {
        Some(size) => Some(parsed(size).ok_or_else(|| wrong("its size is not a quantity"))?),
        None => None,
    };
    let mut sizes: Vec<u64> = Vec::new();
    let of_pod = spec.and_then(|s| s.resources.as_ref());
    let of_containers = spec.into_iter().flat_map(|s| {
        let containers = s.containers.iter().chain(init_containers(s));
        containers.filter_map(|c| c.resources.as_ref())
    });
    for resources in of_pod.into_iter().chain(of_containers) {
        let names = resources.requests.iter().chain(&resources.limits);
        let names = names.flat_map(|list| list.keys());
        sizes.extend(names.filter_map(|n| parsed(n.strip_prefix("hugepages-")?)));
    }
    let none =
        || wrong("hugePages storage requested, but there is no resource request for huge pages");
    match named {
        Some(named) => sizes.contains(&named).then_some(named).ok_or_else(none),
        None => {
            let first = *sizes.first().ok_or_else(none)?;
            match sizes.iter().all(|size| *size == first) {
                true => Ok(first),
                false => Err(SetUpError::HugePages(format!(
                    "medium: {medium} can't be used if container requests multiple huge page sizes"
                ))),
            }
        }
    }
}

fn parsed(size: &str) -> Option<u64> {
    let quantity: Quantity = size.parse().ok()?;
    u64::try_from(quantity.value()).ok().filter(|v| *v > 0)
}

fn size_limit(volume: &Volume) -> Option<&ApiQuantity> {
    volume.empty_dir.as_ref()?.size_limit.as_ref()
}

fn bytes(quantity: &ApiQuantity) -> Option<u64> {
    let parsed: Quantity = quantity.0.parse().ok()?;
    Some(u64::try_from(parsed.value()).unwrap_or_default())
}

/// The smallest of what the node has, the pod may use and the volume asks; zero is no limit.
fn memory_size(node: Option<u64>, pod: Option<u64>, volume: Option<u64>) -> Option<u64> {
    [node, pod, volume]
        .into_iter()
        .flatten()
        .filter(|bytes| *bytes > 0)
        .min()
}

fn memory_limit(resources: Option<&ResourceRequirements>) -> Option<u64> {
    let quantity = resources?.limits.as_ref()?.get("memory")?;
    bytes(quantity).filter(|b| *b > 0)
}

/// The memory limit of the whole pod; none unless every container has one.
fn pod_memory_limit(spec: &PodSpec) -> Option<u64> {
    if let Some(limit) = memory_limit(spec.resources.as_ref()) {
        return Some(limit);
    }
    let mut together = 0u64;
    for container in &spec.containers {
        together = together.saturating_add(memory_limit(container.resources.as_ref())?);
    }
    // Sidecars stay beside all that comes after them; the others run one at a time.
    let (mut sidecars, mut peak) = (0u64, 0u64);
    for container in init_containers(spec) {
        let limit = memory_limit(container.resources.as_ref())?;
        let while_it_runs = sidecars.saturating_add(limit);
        peak = peak.max(while_it_runs);
        if is_sidecar(container) {
            sidecars = while_it_runs;
        }
    }
    let overhead = spec.overhead.as_ref().and_then(|o| bytes(o.get("memory")?));
    let used = together.saturating_add(sidecars).max(peak);
    Some(used.saturating_add(overhead.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use krablet_pod::api::Container;

    fn container(limit: Option<&str>, sidecar: bool) -> Container {
        let limits = limit.map(|l| [("memory".to_owned(), ApiQuantity(l.to_owned()))].into());
        Container {
            resources: Some(ResourceRequirements {
                limits,
                ..Default::default()
            }),
            restart_policy: sidecar.then(|| "Always".to_owned()),
            ..Default::default()
        }
    }

    #[test]
    fn memory_of_a_pod() {
        type Limits<'a> = &'a [(Option<&'a str>, bool)];
        let cases: [(Limits, Limits, Option<u64>); 6] = [
            (&[], &[(Some("10"), false), (Some("5"), false)], Some(15)),
            (&[], &[(Some("10"), false), (None, false)], None),
            (&[(None, false)], &[(Some("10"), false)], None),
            (&[(Some("99"), false)], &[(Some("10"), false)], Some(99)),
            (&[(Some("20"), true)], &[(Some("10"), false)], Some(30)),
            (
                &[(Some("20"), true), (Some("99"), false)],
                &[(Some("10"), false)],
                Some(119),
            ),
        ];
        for (init, regular, limit) in cases {
            let make = |list: Limits| list.iter().map(|(l, s)| container(*l, *s)).collect();
            let spec = PodSpec {
                init_containers: Some(make(init)),
                containers: make(regular),
                ..Default::default()
            };
            assert_eq!(pod_memory_limit(&spec), limit, "{init:?} {regular:?}");
        }
    }

    #[test]
    fn pages_of_the_size_the_pod_asked_for() {
        let cases: [(&str, &[&str], Result<u64, &str>); 7] = [
            ("HugePages", &["hugepages-2Mi", "cpu"], Ok(2 << 20)),
            (
                "HugePages-1Gi",
                &["hugepages-2Mi", "hugepages-1Gi"],
                Ok(1 << 30),
            ),
            (
                "HugePages",
                &["hugepages-2Mi", "hugepages-1Gi"],
                Err("multiple huge page sizes"),
            ),
            ("HugePages", &["cpu"], Err("no resource request")),
            (
                "HugePages-1Gi",
                &["hugepages-2Mi"],
                Err("no resource request"),
            ),
            ("HugePages-x", &["hugepages-2Mi"], Err("not a quantity")),
            ("Odd", &[], Err("unknown storage medium \"Odd\"")),
        ];
        for (name, requests, expected) in cases {
            let list = requests
                .iter()
                .map(|r| (r.to_string(), ApiQuantity("1".into())));
            let spec = PodSpec {
                containers: vec![Container {
                    resources: Some(ResourceRequirements {
                        requests: Some(list.collect()),
                        ..Default::default()
                    }),
                    ..Default::default()
                }],
                ..Default::default()
            };
            let source = serde_json::json!({"name": "v", "emptyDir": {"medium": name}});
            let volume: Volume = serde_json::from_value(source).unwrap();
            match (medium(&volume, Some(&spec)), expected) {
                (Ok(found), Ok(size)) => assert_eq!(found, Medium::HugePages(size)),
                (Err(e), Err(text)) => assert!(e.to_string().contains(text), "{e}"),
                (found, _) => panic!("{name} {requests:?}: {found:?}"),
            }
        }
    }

    #[test]
    fn the_smallest_limit_counts() {
        assert_eq!(memory_size(None, None, None), None);
        assert_eq!(memory_size(Some(100), None, None), Some(100));
        assert_eq!(memory_size(Some(100), Some(50), Some(70)), Some(50));
        assert_eq!(memory_size(Some(100), Some(50), Some(0)), Some(50));
        assert_eq!(memory_size(Some(100), None, Some(7)), Some(7));
        assert_eq!(memory_size(Some(100), None, Some(700)), Some(100));
    }
}
