//! A snapshot of a small node, for tests of what is told of it.

use std::sync::Arc;

use jiff::Timestamp;
use krablet_pod::PodRef;

use crate::reading::{
    Cgroup, Container, Cpu, DeviceIo, Facts, FileSystem, Interface, IoCost, Memory, MemoryLimits,
    OpenFiles, Pod, Pressure, ProcessLimits, Psi, PsiLine, Snapshot, System, Tasks, Throttling,
    Traffic, Usage, Volume,
};

pub const NOW: i64 = 1_700_000_000;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

pub fn cgroup(usage: u64) -> Cgroup {
    let line = |total| PsiLine {
        avg10: 0.5,
        total,
        ..PsiLine::default()
    };
    Cgroup {
        cpu: Some(Cpu {
            usage,
            user: usage / 2,
            system: usage / 2,
            nano_cores: Some(1_000_000),
            throttling: Some(Throttling {
                periods: 10,
                throttled_periods: 1,
                throttled_time: 5_000_000,
            }),
            shares: 102,
            period: 100_000,
            quota: Some(20_000),
        }),
        memory: Some(Memory {
            usage: 3000,
            working_set: 2000,
            rss: 1500,
            swap: 64,
            page_faults: 7,
            major_page_faults: 1,
            limits: MemoryLimits {
                memory: Some(10_000),
                swap: Some(100),
                reservation: 0,
            },
            ..Memory::default()
        }),
        tasks: Some(Tasks {
            processes: 2,
            threads: 5,
            threads_max: 0,
            files: Some(OpenFiles {
                descriptors: 12,
                sockets: 3,
                limit: Some(1024),
            }),
        }),
        io: vec![DeviceIo {
            major: 254,
            minor: 0,
            read_bytes: 4096,
            write_bytes: 512,
            reads: 1,
            writes: 2,
            cost: IoCost {
                usage: Some(2_500_000),
                ..IoCost::default()
            },
        }],
        pressure: Pressure {
            cpu: Some(Psi {
                full: line(1),
                some: line(2_000_000),
            }),
            memory: None,
            io: Some(Psi::default()),
        },
    }
}

fn file_system(device: &str) -> FileSystem {
    FileSystem {
        device: device.to_owned(),
        capacity: 100_000,
        available: 60_000,
        used: 40_000,
        inodes: 1000,
        inodes_free: 900,
    }
}

fn pod() -> Pod {
    let container = Container {
        name: "main".into(),
        id: "c1".into(),
        image: "busybox:1".into(),
        path: "/kubepods/podu1/c1".into(),
        started: Some(at(NOW - 50)),
        cgroup: cgroup(2_500_000_000),
        writable: Some(Usage {
            bytes: 8192,
            inodes: 2,
        }),
        logs: Some(Usage {
            bytes: 4096,
            inodes: 1,
        }),
    };
    let volume = |name: &str, ephemeral, claim: Option<(&str, &str)>| Volume {
        name: name.to_owned(),
        claim: claim.map(|(ns, name)| (ns.to_owned(), name.to_owned())),
        ephemeral,
        file_system: file_system(""),
        usage: Usage {
            bytes: 1000,
            inodes: 3,
        },
        at: at(NOW - 30),
    };
    Pod {
        pod: PodRef {
            uid: "u1".into(),
            namespace: "default".into(),
            name: "web".into(),
        },
        started: Some(at(NOW - 60)),
        path: "/kubepods/podu1".into(),
        cgroup: Some(cgroup(3_000_000_000)),
        sandbox: Some(Container {
            id: "s1".into(),
            image: "pause:3".into(),
            path: "/kubepods/podu1/s1".into(),
            started: Some(at(NOW - 61)),
            cgroup: cgroup(500_000_000),
            ..Container::default()
        }),
        network: vec![Interface {
            name: "eth0".into(),
            received: Traffic {
                bytes: 100,
                packets: 2,
                errors: 0,
                dropped: 0,
            },
            sent: Traffic {
                bytes: 50,
                packets: 1,
                errors: 0,
                dropped: 0,
            },
        }],
        containers: vec![container],
        volumes: vec![
            volume("scratch", true, None),
            volume("data", false, Some(("default", "claim"))),
        ],
        other: Usage {
            bytes: 512,
            inodes: 1,
        },
    }
}

pub fn snapshot() -> Snapshot {
    Snapshot {
        at: at(NOW),
        facts: Arc::new(Facts {
            node_name: "n1".into(),
            booted: Some(at(NOW - 1000)),
            cpus: 2,
            memory: 1 << 30,
            ..Facts::default()
        }),
        node: cgroup(9_000_000_000),
        network: Vec::new(),
        root_fs: Some(file_system("/dev/vda1")),
        image_fs: Some((
            file_system("/dev/vda1"),
            Some(Usage {
                bytes: 30_000,
                inodes: 50,
            }),
        )),
        container_fs: None,
        processes: ProcessLimits {
            max: Some(4096),
            current: Some(77),
        },
        systems: vec![System {
            name: Some("pods"),
            path: "/kubepods".into(),
            started: None,
            cgroup: cgroup(4_000_000_000),
        }],
        pods: vec![pod()],
        devices: vec![(254, 0, "vda".into())],
    }
}
