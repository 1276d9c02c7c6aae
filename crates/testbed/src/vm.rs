//! A machine as users have it: systemd as the first process and cgroup v2, under software emulation.
//!
//! The disk it boots from is made once and never written to. Every job brings a disk of its own with
//! the parts, the images, its files and its script, and finds its results on it afterwards.

use std::collections::BTreeMap;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::parts::Part;
use crate::{cache, images, packages, parts};

/// The loopback of this machine as seen from inside the virtual one, whose network interface jobs configure that need it:
/// [`NETWORK`] are the commands for that.
pub const HOST: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);

/// Without a server of addresses: qemu's is one more thing to wait for, and it always gives the same.
pub const NETWORK: &str = "
    modprobe virtio_net
    ip link set eth0 up
    ip addr add 10.0.2.15/24 dev eth0
    ip route add default via 10.0.2.2
";

const KERNEL: &str = "console=ttyS0 root=/dev/vda rw panic=-1 net.ifnames=0";

/// What a machine is started for.
#[derive(Clone, Debug)]
pub struct VmJob {
    /// Files to put on the job's disk: from here, to that path below `/job`. Modes are kept.
    pub files: Vec<(PathBuf, String)>,
    /// Shell commands. `/job/bin` is in the PATH and holds containerd, its shim, ctr and the CNI
    /// plugins; `/job/start-containerd` starts containerd with the test images in it. What is
    /// written to `/job/out` is read back.
    pub script: String,
    /// Further words for the kernel, as a boot loader gives them.
    pub kernel: String,
    /// After this long the machine is switched off and the job has failed.
    pub timeout: Duration,
}

impl Default for VmJob {
    fn default() -> Self {
        Self {
            files: Vec::new(),
            script: String::new(),
            kernel: String::new(),
            timeout: Duration::from_secs(600),
        }
    }
}

/// What a machine left.
#[derive(Clone, Debug)]
pub struct VmReport {
    /// Exit code of the script; `None` if it did not come to its end.
    pub code: Option<i32>,
    /// What the script printed.
    pub output: String,
    /// What the machine printed to its console.
    pub console: String,
    /// The other files of `/job/out`, by path; `journal` is always there after an orderly end.
    pub files: BTreeMap<String, Vec<u8>>,
    /// From power-on to power-off.
    pub elapsed: Duration,
}

impl VmReport {
    /// One of the files as text; empty if it is not there.
    pub fn text(&self, path: &str) -> String {
        self.files
            .get(path)
            .map(|bytes| String::from_utf8_lossy(bytes).into_owned())
            .unwrap_or_default()
    }
}

/// The directory with `vmlinuz`, `initrd` and `disk.img`; made on first use, which takes minutes.
pub fn image() -> Result<PathBuf> {
    packages::ensure(&packages::VM)?;
    let recipe = cache::sources().join("vm/base");
    let files = cache::tree(&recipe)?;
    let key = cache::digest(
        files
            .iter()
            .flat_map(|(name, text)| [name.as_bytes(), text]),
    );
    cache::entry("vm", &key, |dir| {
        if !rustix::process::geteuid().is_root() {
            bail!("making the virtual machine's disk needs root rights");
        }
        cache::progress("installing a small Debian for the virtual machine");
        let mut make = Command::new("unshare");
        make.args(["--mount", "sh"])
            .arg(recipe.join("make-root.sh"))
            .arg(dir);
        cache::run(&mut make)?;
        fs::write(dir.join("initrd"), initrd(&recipe, dir)?)?;
        make_disk(&dir.join("root"), &dir.join("disk.img"), "4G")?;
        fs::remove_dir_all(dir.join("root"))?;
        Ok(fs::remove_dir_all(dir.join("modules"))?)
    })
}

fn make_disk(from: &Path, disk: &Path, size: &str) -> Result<()> {
    let mke2fs = packages::find("mke2fs").context("no mke2fs")?;
    let mut command = Command::new(mke2fs);
    command.args([
        "-q",
        "-F",
        "-t",
        "ext4",
        "-m",
        "0",
        "-E",
        "lazy_itable_init=1,nodiscard",
        "-d",
    ]);
    cache::run(command.arg(from).arg(disk).arg(size)).map(drop)
}

/// The initial RAM disk: busybox, the disk driver, and a script that mounts the disk.
fn initrd(recipe: &Path, dir: &Path) -> Result<Vec<u8>> {
    let busybox = packages::find("busybox").context("no busybox")?;
    let mut cpio = Cpio::default();
    for name in ["bin", "dev", "proc", "root"] {
        cpio.entry(name, 0o040_755, &[]);
    }
    cpio.entry("init", 0o100_755, &fs::read(recipe.join("initrd-init"))?);
    cpio.entry("bin/busybox", 0o100_755, &fs::read(busybox)?);
    for (name, module) in cache::tree(&dir.join("modules"))? {
        cpio.entry(&name, 0o100_644, &module);
    }
    Ok(cpio.finish())
}

/// The archive format kernels unpack, `newc`.
#[derive(Default)]
struct Cpio {
    bytes: Vec<u8>,
    count: u32,
}

impl Cpio {
    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.count += 1;
        let (size, name_size) = (content.len(), name.len() + 1);
        let fields = [
            self.count,
            mode,
            0,
            0,
            1,
            0,
            size as u32,
            0,
            0,
            0,
            0,
            name_size as u32,
            0,
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes
                .extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }
}

/// Boots a machine for the job, waits for its end, and gives back what it left.
pub async fn run(job: VmJob) -> Result<VmReport> {
    // The thread that starts the machine stays until it ends: the machine dies with that thread.
    tokio::task::spawn_blocking(move || run_here(&job)).await?
}

fn run_here(job: &VmJob) -> Result<VmReport> {
    let image = image()?;
    let bins = parts::ensure(&[Part::Containerd, Part::Cni])?;
    let images = images::standard()?;
    // One at a time: a machine keeps every processor busy.
    let _turn = cache::lock("vm-run")?;
    let work = cache::root()?.join("vm-run");
    if work.exists() {
        fs::remove_dir_all(&work)?;
    }
    fs::create_dir_all(&work)?;
    let report = run_in(job, &work, &image, bins.dirs(), &images);
    fs::remove_dir_all(&work)?;
    report
}

fn run_in(
    job: &VmJob,
    work: &Path,
    image: &Path,
    bins: &[PathBuf],
    images: &Path,
) -> Result<VmReport> {
    furnish(job, &work.join("job"), bins, images)?;
    let size = format!("{}M", 512 + tree_size(&work.join("job"))? / (1 << 20));
    make_disk(&work.join("job"), &work.join("job.img"), &size)?;
    fs::remove_dir_all(work.join("job"))?;
    let elapsed = power_on(image, work, job)?;
    read_back(work, elapsed)
}

/// Lays out the job's disk.
fn furnish(job: &VmJob, dir: &Path, bins: &[PathBuf], images: &Path) -> Result<()> {
    let place = |from: &Path, to: &str| -> Result<()> {
        let to = dir.join(to);
        fs::create_dir_all(to.parent().context("no parent")?)?;
        fs::copy(from, &to).with_context(|| format!("copying {}", from.display()))?;
        Ok(())
    };
    let fixed = cache::sources().join("vm/job");
    for (name, _) in cache::tree(&fixed)? {
        place(&fixed.join(&name), &name)?;
    }
    for bin in bins {
        for (name, _) in cache::tree(bin)? {
            place(&bin.join(&name), &format!("bin/{name}"))?;
        }
    }
    place(images, "images.tar")?;
    for (from, to) in &job.files {
        place(from, to)?;
    }
    Ok(fs::write(dir.join("run.sh"), &job.script)?)
}

fn tree_size(dir: &Path) -> Result<u64> {
    let mut size = 0;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let kind = entry.metadata()?;
        size += if kind.is_dir() {
            tree_size(&entry.path())?
        } else {
            kind.len()
        };
    }
    Ok(size)
}

fn power_on(image: &Path, work: &Path, job: &VmJob) -> Result<Duration> {
    let timeout = job.timeout;
    let accelerator =
        std::env::var("KRABLET_VM_ACCEL").unwrap_or_else(|_| "tcg,thread=multi".to_owned());
    let drive = |file: PathBuf, more: &str| {
        format!(
            "file={},format=raw,if=virtio,cache=unsafe{more}",
            file.display()
        )
    };
    let console = work.join("console");
    let errors = fs::File::create(work.join("qemu.log"))?;
    let start = Instant::now();
    let mut machine = Command::new("setpriv")
        .args([
            "--pdeathsig",
            "KILL",
            "qemu-system-x86_64",
            "-accel",
            &accelerator,
        ])
        .args([
            "-cpu",
            "max",
            "-smp",
            "2",
            "-m",
            "3G",
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
            "-no-reboot",
        ])
        .arg("-kernel")
        .arg(image.join("vmlinuz"))
        .arg("-initrd")
        .arg(image.join("initrd"))
        .args(["-append", &format!("{KERNEL} {}", job.kernel)])
        .args(["-drive", &drive(image.join("disk.img"), ",snapshot=on")])
        .args(["-drive", &drive(work.join("job.img"), "")])
        .args(["-serial", &format!("file:{}", console.display())])
        // No ROM: nothing is to be booted from the network.
        .args(["-netdev", "user,id=net0"])
        .args(["-device", "virtio-net-pci,netdev=net0,romfile="])
        .env("TMPDIR", work)
        .stdin(Stdio::null())
        .stdout(errors.try_clone()?)
        .stderr(errors)
        .spawn()
        .context("starting qemu")?;
    loop {
        if let Some(status) = machine.try_wait()? {
            if !status.success() {
                bail!(
                    "qemu: {status}\n{}",
                    crate::bed::tail(&work.join("qemu.log"), 20)
                );
            }
            return Ok(start.elapsed());
        }
        if start.elapsed() > timeout {
            machine.kill()?;
            machine.wait()?;
            bail!(
                "the machine did not end within {timeout:?}\n{}",
                crate::bed::tail(&console, 60)
            );
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn read_back(work: &Path, elapsed: Duration) -> Result<VmReport> {
    let results = work.join("results");
    fs::create_dir(&results)?;
    let debugfs = packages::find("debugfs").context("no debugfs")?;
    let request = format!("rdump /out {}", results.display());
    cache::run(
        Command::new(debugfs)
            .args(["-R", &request])
            .arg(work.join("job.img")),
    )?;
    let console = fs::read(work.join("console")).unwrap_or_default();
    let console = String::from_utf8_lossy(&console).into_owned();
    let out = results.join("out");
    if !out.is_dir() {
        bail!("the machine ended before its job began\n{console}");
    }
    let mut files: BTreeMap<String, Vec<u8>> = cache::tree(&out)?.into_iter().collect();
    let mut text = |name: &str| {
        files
            .remove(name)
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    };
    let code = text("code").and_then(|code| code.trim().parse().ok());
    let output = text("output").unwrap_or_default();
    Ok(VmReport {
        code,
        output,
        console,
        files,
        elapsed,
    })
}
