//! The real parts a test stands on, each pinned by a Go module of its own under `testbed/parts` and
//! built on first use.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{cache, packages};

/// One thing to build; only what a test asks for is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// containerd, its runc shim, and ctr.
    Containerd,
    /// The CNI plugins bridge, host-local, loopback and portmap.
    Cni,
    Crictl,
    Etcd,
    KubeApiserver,
    KubeControllerManager,
    KubeScheduler,
    Kubeadm,
    Kubectl,
    Kubelet,
    MetricsServer,
    /// A runc that keeps the users of pods apart, which the distribution's cannot. A bed made with it has
    /// [`NEXT_RUNC`] as a second runtime handler.
    Runc,
}

/// The name of the newer runc, as a command and as a runtime handler.
pub const NEXT_RUNC: &str = "runc-next";

/// The version of everything of Kubernetes here.
pub const KUBERNETES: &str = "v1.36.4";

impl Part {
    /// All of them, in the order that is best to build them in.
    pub const ALL: [Part; 12] = [
        Part::Containerd,
        Part::Cni,
        Part::Crictl,
        Part::Etcd,
        Part::Kubelet,
        Part::KubeApiserver,
        Part::KubeControllerManager,
        Part::KubeScheduler,
        Part::Kubectl,
        Part::Kubeadm,
        Part::MetricsServer,
        Part::Runc,
    ];

    /// The name by which `krablet-lab parts` knows it, and of its place in the cache.
    pub fn name(self) -> &'static str {
        match self {
            Part::Containerd => "containerd",
            Part::Cni => "cni",
            Part::Crictl => "crictl",
            Part::Etcd => "etcd",
            Part::KubeApiserver => "kube-apiserver",
            Part::KubeControllerManager => "kube-controller-manager",
            Part::KubeScheduler => "kube-scheduler",
            Part::Kubeadm => "kubeadm",
            Part::Kubectl => "kubectl",
            Part::Kubelet => "kubelet",
            Part::MetricsServer => "metrics-server",
            Part::Runc => "runc",
        }
    }

    /// The directory of the module under `testbed/parts`.
    fn module(self) -> &'static str {
        match self {
            Part::Containerd => "containerd",
            Part::Cni => "cni",
            Part::Crictl => "crictl",
            Part::Etcd => "etcd",
            Part::MetricsServer => "metrics-server",
            Part::Runc => "runc",
            _ => "kubernetes",
        }
    }

    /// The binaries it consists of, each with the package it is built from.
    fn commands(self) -> Vec<(&'static str, String)> {
        let all = |prefix: &str, names: &[&'static str]| {
            names
                .iter()
                .map(|path| {
                    (
                        path.rsplit('/').next().unwrap_or(path),
                        format!("{prefix}/{path}"),
                    )
                })
                .collect()
        };
        match self {
            Part::Containerd => all(
                "github.com/containerd/containerd/v2/cmd",
                &["containerd", "containerd-shim-runc-v2", "ctr"],
            ),
            Part::Cni => all(
                "github.com/containernetworking/plugins/plugins",
                &[
                    "ipam/host-local",
                    "main/bridge",
                    "main/loopback",
                    "meta/portmap",
                ],
            ),
            Part::Crictl => all("sigs.k8s.io/cri-tools/cmd", &["crictl"]),
            Part::Etcd => vec![("etcd", "go.etcd.io/etcd/server/v3".to_owned())],
            Part::MetricsServer => all("sigs.k8s.io/metrics-server/cmd", &["metrics-server"]),
            // Not `runc`: in a PATH with the parts first it would be taken for the distribution's.
            Part::Runc => vec![(NEXT_RUNC, "github.com/opencontainers/runc".to_owned())],
            _ => all("k8s.io/kubernetes/cmd", &[self.name()]),
        }
    }

    /// Kubernetes commands say v0.0.0 of themselves unless told otherwise, and refuse each other.
    fn ldflags(self) -> String {
        let mut flags = "-s -w".to_owned();
        if self.module() == "kubernetes" {
            let package = "k8s.io/component-base/version";
            flags.push_str(&format!(
                " -X {package}.gitVersion={KUBERNETES} -X {package}.gitMajor=1 -X {package}.gitMinor=36"
            ));
        }
        flags
    }
}

impl std::str::FromStr for Part {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> Result<Self> {
        let known = || Part::ALL.map(Part::name).join(", ");
        Part::ALL
            .into_iter()
            .find(|part| part.name() == name)
            .with_context(|| format!("no part {name:?}; there are {}", known()))
    }
}

/// Where the binaries of the parts asked for are.
#[derive(Clone, Debug)]
pub struct Bins {
    dirs: Vec<PathBuf>,
}

impl Bins {
    /// The path of one binary, such as `ctr`.
    pub fn path(&self, binary: &str) -> Result<PathBuf> {
        self.dirs
            .iter()
            .map(|dir| dir.join(binary))
            .find(|path| path.is_file())
            .with_context(|| format!("{binary} is in none of {:?}", self.dirs))
    }

    /// The directories, one per part, in the order asked for.
    pub fn dirs(&self) -> &[PathBuf] {
        &self.dirs
    }

    /// A `PATH` that finds the parts first and then the system's programs.
    pub fn path_variable(&self) -> String {
        let mut dirs: Vec<String> = self
            .dirs
            .iter()
            .map(|dir| dir.display().to_string())
            .collect();
        dirs.push("/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned());
        dirs.join(":")
    }
}

/// Builds what is missing and says where everything is. Blocks; the first time for minutes.
pub fn ensure(parts: &[Part]) -> Result<Bins> {
    let plans: Vec<Plan> = parts
        .iter()
        .map(|part| Plan::of(*part))
        .collect::<Result<_>>()?;
    let mut modules: Vec<&str> = parts.iter().map(|part| part.module()).collect();
    modules.sort_unstable();
    modules.dedup();
    for module in modules {
        build_together(module, &plans)?;
    }
    let dirs = plans.iter().map(ensure_one).collect::<Result<_>>()?;
    Ok(Bins { dirs })
}

impl Bins {
    /// The same with another directory before the others.
    fn preferring(mut self, dir: PathBuf) -> Self {
        self.dirs.insert(0, dir);
        self
    }
}

/// The distribution's own containerd in front of these parts: unpacked, not installed, so that no
/// service comes with it. Older than ours: it has no container events and no runtime configuration.
pub fn with_debian_containerd(bins: Bins) -> Result<Bins> {
    let dir = cache::entry(
        "containerd-debian",
        &cache::digest([b"1".as_slice()]),
        |dir| {
            packages::unpack("containerd", &dir.join("unpacked"))?;
            for name in ["containerd", "containerd-shim-runc-v2", "ctr"] {
                std::fs::rename(dir.join("unpacked/usr/bin").join(name), dir.join(name))?;
            }
            Ok(std::fs::remove_dir_all(dir.join("unpacked"))?)
        },
    )?;
    Ok(bins.preferring(dir))
}

/// How a part is built, and the key that its result is kept under.
struct Plan {
    part: Part,
    source: PathBuf,
    commands: Vec<(&'static str, String)>,
    key: String,
}

impl Plan {
    fn of(part: Part) -> Result<Self> {
        let source = cache::sources().join("parts").join(part.module());
        let read = |name: &str| {
            let path = source.join(name);
            std::fs::read(&path).with_context(|| format!("reading {}", path.display()))
        };
        let (requirements, sums) = (read("go.mod")?, read("go.sum")?);
        let commands = part.commands();
        let flags = part.ldflags();
        let names: Vec<&str> = commands
            .iter()
            .map(|(_, package)| package.as_str())
            .collect();
        let names = names.join(" ");
        let key = cache::digest([&requirements, &sums, flags.as_bytes(), names.as_bytes()]);
        Ok(Self {
            part,
            source,
            commands,
            key,
        })
    }

    fn packages(&self) -> impl Iterator<Item = &str> {
        self.commands.iter().map(|(_, package)| package.as_str())
    }

    fn is_built(&self) -> Result<bool> {
        cache::has(self.part.name(), &self.key)
    }
}

/// Builds all that is missing of a module in one go when that is several binaries: the compiler has
/// the whole graph before it then, and no processor waits for the linker.
fn build_together(module: &str, plans: &[Plan]) -> Result<()> {
    let missing = || -> Result<Vec<&Plan>> {
        let mut missing = Vec::new();
        for plan in plans.iter().filter(|plan| plan.part.module() == module) {
            if !plan.is_built()? {
                missing.push(plan);
            }
        }
        Ok(missing)
    };
    if missing()?.is_empty() {
        return Ok(());
    }
    let _alone = cache::lock(&format!("build-{module}"))?;
    // Somebody else may have built them while this process waited.
    let missing = missing()?;
    let packages: Vec<&str> = missing.iter().flat_map(|plan| plan.packages()).collect();
    let (Some(first), true) = (missing.first(), packages.len() > 1) else {
        return Ok(());
    };
    let names: Vec<&str> = missing.iter().map(|plan| plan.part.name()).collect();
    cache::progress(&format!("building {} with Go …", names.join(", ")));
    let work = cache::root()?.join(format!(".{module}.build"));
    if work.exists() {
        std::fs::remove_dir_all(&work)?;
    }
    std::fs::create_dir_all(&work)?;
    go_build(&first.source, &first.part.ldflags(), &work, &packages)?;
    for plan in missing {
        cache::entry(plan.part.name(), &plan.key, |dir| {
            for (name, package) in &plan.commands {
                // With several packages the compiler chooses the names: the last piece of each.
                let built = package.rsplit('/').next().unwrap_or(name);
                std::fs::rename(work.join(built), dir.join(name))
                    .with_context(|| format!("{built} was not built"))?;
            }
            Ok(())
        })?;
    }
    Ok(std::fs::remove_dir_all(&work)?)
}

fn ensure_one(plan: &Plan) -> Result<PathBuf> {
    cache::entry(plan.part.name(), &plan.key, |dir| {
        for (name, package) in &plan.commands {
            cache::progress(&format!("building {name} with Go"));
            let flags = plan.part.ldflags();
            let mut go = go_command(&plan.source, &flags, &dir.join(name), &[package]);
            if plan.part == Part::Runc {
                with_seccomp(&mut go)?;
            }
            run_go(&mut go)?;
        }
        Ok(())
    })
}

/// Static binaries from packages that the module in `module` requires or contains: one in the file
/// `output`, or several in the directory of that name.
pub(crate) fn go_build(
    module: &Path,
    ldflags: &str,
    output: &Path,
    packages: &[&str],
) -> Result<()> {
    run_go(&mut go_command(module, ldflags, output, packages))
}

fn go_command(module: &Path, ldflags: &str, output: &Path, packages: &[&str]) -> Command {
    let mut go = Command::new("go");
    go.current_dir(module)
        .env("CGO_ENABLED", "0")
        .env("GOWORK", "off")
        // The compiler spends a fifth of its time on the garbage of small heaps.
        .env("GOGC", "400")
        .args([
            "build",
            "-trimpath",
            "-buildvcs=false",
            "-mod=readonly",
            // The linker would leave it out again.
            "-gcflags=all=-dwarf=false",
            "-ldflags",
            ldflags,
            "-o",
        ])
        .arg(output)
        .args(packages);
    go
}

fn run_go(go: &mut Command) -> Result<()> {
    if Command::new("go").arg("version").output().is_err() {
        bail!("Go is not installed (no `go` in PATH); it builds the parts of the test bed");
    }
    cache::run(go).map(drop)
}

/// Lets C in, and the library that makes system call filters. Of that the distribution's archive is
/// unpacked, not installed, and linked into the binary: the machine is left as it is.
fn with_seccomp(go: &mut Command) -> Result<()> {
    packages::ensure(&[packages::GCC])?;
    let dir = cache::entry("libseccomp", &cache::digest([b"1".as_slice()]), |dir| {
        packages::unpack("libseccomp-dev", dir)
    })?;
    // It is in a directory named after the machine.
    let library = std::fs::read_dir(dir.join("usr/lib"))?
        .flatten()
        .map(|entry| entry.path().join("libseccomp.a"))
        .find(|path| path.is_file())
        .with_context(|| format!("no libseccomp.a in {}", dir.display()))?;
    go.env("CGO_ENABLED", "1")
        .env(
            "CGO_CFLAGS",
            format!("-O2 '-I{}/usr/include'", dir.display()),
        )
        .env("CGO_LDFLAGS", format!("'{}'", library.display()))
        .env("GOFLAGS", "-tags=seccomp")
        // Whom Go would ask where the library is; that is said already, and this one adds nothing.
        .env("PKG_CONFIG", "true");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_a_tool_of_its_pinned_module() {
        for part in Part::ALL {
            let module = cache::sources().join("parts").join(part.module());
            let text = std::fs::read_to_string(module.join("go.mod")).unwrap();
            for (_, package) in part.commands() {
                assert!(
                    text.contains(&package),
                    "{package} is not in {}",
                    module.display()
                );
            }
            assert!(module.join("go.sum").is_file());
            assert_eq!(part.name().parse::<Part>().unwrap(), part);
        }
    }
}
