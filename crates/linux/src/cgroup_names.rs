//! What the cgroup of a pod is called, for both drivers, exactly as the kubelet calls it.

use krablet_pod::PodUid;
use krablet_pod::qos::QosClass;

/// Who makes cgroups on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupDriver {
    Cgroupfs,
    Systemd,
}

pub const CLASSES: [QosClass; 3] = [
    QosClass::Guaranteed,
    QosClass::Burstable,
    QosClass::BestEffort,
];

const ALL_PODS: &str = "kubepods";
const POD_PREFIX: &str = "pod";
const SLICE: &str = ".slice";

/// The names below one root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupNames {
    driver: CgroupDriver,
    root: Vec<String>,
    per_qos: bool,
}

impl CgroupNames {
    /// `root` is `cgroupRoot` of the configuration, in cgroupfs form; without `per_qos`
    /// (`cgroupsPerQOS`) pods have no cgroups of their own.
    pub fn new(driver: CgroupDriver, root: &str, per_qos: bool) -> Self {
        let mut root: Vec<String> = root
            .split('/')
            .filter(|part| !part.is_empty() && *part != "." && *part != "..")
            .map(str::to_owned)
            .collect();
        if per_qos {
            root.push(ALL_PODS.to_owned());
        }
        Self {
            driver,
            root,
            per_qos,
        }
    }

    pub fn per_qos(&self) -> bool {
        self.per_qos
    }

    /// The cgroup that holds all pods of a class, as a path below the hierarchy's mount point.
    pub fn class(&self, qos: QosClass) -> String {
        self.path(&self.class_parts(qos))
    }

    /// The cgroup of a class by its plain parts, whatever the driver makes of them.
    pub fn plain_class(&self, qos: QosClass) -> String {
        self.class_parts(qos).join("/")
    }

    /// A cgroup that the user named, as a path below the hierarchy's mount point. With systemd a slice
    /// stands for itself and those above it.
    pub fn given(&self, name: &str) -> String {
        let last = name.rsplit('/').next().unwrap_or_default();
        match (self.driver, last.strip_suffix(SLICE)) {
            (CgroupDriver::Systemd, slice) => {
                let parts = slice.unwrap_or(last).split('-').map(str::to_owned);
                slice_path(&parts.collect::<Vec<_>>())
            }
            (CgroupDriver::Cgroupfs, _) => {
                let parts = name.split('/');
                let parts = parts.filter(|part| !part.is_empty() && *part != "." && *part != "..");
                format!("/{}", parts.collect::<Vec<_>>().join("/"))
            }
        }
    }

    /// The pod's cgroup as a path below the hierarchy's mount point; this is also what the
    /// runtime is told as cgroup parent. Empty when pods have no cgroups of their own.
    pub fn pod(&self, uid: &PodUid, qos: QosClass) -> String {
        if !self.per_qos {
            return String::new();
        }
        let mut parts = self.class_parts(qos);
        parts.push(format!("{POD_PREFIX}{}", plain(uid.as_str())));
        self.path(&parts)
    }

    /// The UID behind an entry of a class's cgroup, if it is a pod's.
    pub fn uid_of(&self, qos: QosClass, entry: &str) -> Option<PodUid> {
        let part = match self.driver {
            CgroupDriver::Cgroupfs => entry.to_owned(),
            CgroupDriver::Systemd => {
                let parent = escaped(&self.class_parts(qos)).join("-");
                let part = entry.strip_suffix(SLICE)?.strip_prefix(&parent)?;
                part.strip_prefix('-')?.replace('_', "-")
            }
        };
        let uid = part.strip_prefix(POD_PREFIX)?;
        (!uid.is_empty()).then(|| uid.into())
    }

    fn class_parts(&self, qos: QosClass) -> Vec<String> {
        let mut parts = self.root.clone();
        match qos {
            QosClass::Guaranteed => {}
            QosClass::Burstable => parts.push("burstable".to_owned()),
            QosClass::BestEffort => parts.push("besteffort".to_owned()),
        }
        parts
    }

    fn path(&self, parts: &[String]) -> String {
        match self.driver {
            CgroupDriver::Cgroupfs => format!("/{}", parts.join("/")),
            CgroupDriver::Systemd => slice_path(&escaped(parts)),
        }
    }
}

/// A slice named `a-b.slice` stands inside `a.slice`.
fn slice_path(parts: &[String]) -> String {
    if parts.is_empty() {
        return "/".to_owned();
    }
    (1..=parts.len())
        .map(|n| format!("/{}{SLICE}", parts[..n].join("-")))
        .collect()
}

/// A dash parts slices, so inside a part it is written as an underscore.
fn escaped(parts: &[String]) -> Vec<String> {
    parts.iter().map(|part| part.replace('-', "_")).collect()
}

/// A UID is outside data (a manifest may set it); whatever could lead elsewhere becomes a dash.
fn plain(uid: &str) -> String {
    uid.chars()
        .map(|c| match c {
            'a'..='z' | 'A'..='Z' | '0'..='9' | '.' | '-' => c,
            _ => '-',
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "0f1e-22";

    #[test]
    fn names_as_upstream() {
        use CgroupDriver::*;
        use QosClass::*;
        let cases = [
            (Cgroupfs, "", Guaranteed, "/kubepods/pod0f1e-22"),
            (Cgroupfs, "/", Burstable, "/kubepods/burstable/pod0f1e-22"),
            (Cgroupfs, "/", BestEffort, "/kubepods/besteffort/pod0f1e-22"),
            (
                Cgroupfs,
                "/kubelet",
                Guaranteed,
                "/kubelet/kubepods/pod0f1e-22",
            ),
            (
                Cgroupfs,
                "a/b-c/",
                BestEffort,
                "/a/b-c/kubepods/besteffort/pod0f1e-22",
            ),
            (
                Systemd,
                "",
                Guaranteed,
                "/kubepods.slice/kubepods-pod0f1e_22.slice",
            ),
            (
                Systemd,
                "/",
                Burstable,
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0f1e_22.slice",
            ),
            (
                Systemd,
                "/kubelet",
                BestEffort,
                "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod0f1e_22.slice",
            ),
            (
                Systemd,
                "/a-b",
                Guaranteed,
                "/a_b.slice/a_b-kubepods.slice/a_b-kubepods-pod0f1e_22.slice",
            ),
        ];
        for (driver, root, qos, name) in cases {
            let names = CgroupNames::new(driver, root, true);
            assert_eq!(
                names.pod(&UID.into(), qos),
                name,
                "{driver:?} {root} {qos:?}"
            );
            let entry = name.rsplit('/').next().unwrap();
            assert_eq!(names.uid_of(qos, entry), Some(UID.into()), "{name}");
            assert_eq!(format!("{}/{entry}", names.class(qos)), name);
        }
    }

    #[test]
    fn entries_that_are_no_pods() {
        let fs = CgroupNames::new(CgroupDriver::Cgroupfs, "", true);
        let systemd = CgroupNames::new(CgroupDriver::Systemd, "", true);
        for entry in ["burstable", "pod", "cgroup.procs", ""] {
            assert_eq!(fs.uid_of(QosClass::Guaranteed, entry), None, "{entry}");
        }
        for entry in [
            "kubepods-burstable.slice",
            "kubepods-pod.slice",
            "kubepods-burstable-podx.slice",
            "other-podx.slice",
            "kubepods-podx",
        ] {
            assert_eq!(systemd.uid_of(QosClass::Guaranteed, entry), None, "{entry}");
        }
    }

    #[test]
    fn without_cgroups_per_qos_pods_have_none() {
        let names = CgroupNames::new(CgroupDriver::Cgroupfs, "/x", false);
        assert_eq!(names.pod(&UID.into(), QosClass::Burstable), "");
    }

    #[test]
    fn names_that_users_give() {
        use CgroupDriver::*;
        for (driver, given, path) in [
            (Cgroupfs, "/system", "/system"),
            (Cgroupfs, "a/../b/", "/a/b"),
            (Systemd, "system.slice", "/system.slice"),
            (
                Systemd,
                "/kube.slice/kube-reserved.slice",
                "/kube.slice/kube-reserved.slice",
            ),
            (
                Systemd,
                "/kube-reserved.slice",
                "/kube.slice/kube-reserved.slice",
            ),
            (Systemd, "/system", "/system.slice"),
        ] {
            let names = CgroupNames::new(driver, "", true);
            assert_eq!(names.given(given), path, "{driver:?} {given}");
        }
        let names = CgroupNames::new(Systemd, "/a-b", true);
        assert_eq!(
            names.plain_class(QosClass::Burstable),
            "a-b/kubepods/burstable"
        );
    }

    #[test]
    fn a_hostile_uid_leads_nowhere() {
        let names = CgroupNames::new(CgroupDriver::Cgroupfs, "/../..", true);
        assert_eq!(
            names.pod(&"../../etc_x".into(), QosClass::Guaranteed),
            "/kubepods/pod..-..-etc-x"
        );
    }
}
