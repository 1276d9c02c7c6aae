use super::*;
use std::fs;

fn over(dirs: &[&Path], driver: CgroupDriver) -> HostCgroups {
    HostCgroups {
        names: CgroupNames::new(driver, "/", true),
        version: CgroupVersion::V1,
        hierarchies: dirs
            .iter()
            .map(|d| Hierarchy {
                mount: d.to_path_buf(),
                controllers: Vec::new(),
                unified: false,
            })
            .collect(),
        page_sizes: Arc::default(),
        systemd: None,
    }
}

/// Needs cgroups of this machine that may be written to; without them there is nothing to see.
#[tokio::test]
async fn a_process_that_outlived_its_pod_is_killed() {
    let parent = ["pids", "unified", ""].map(|h| Path::new(MOUNT).join(h));
    let parent = parent.iter().find(|p| p.join("cgroup.procs").exists());
    let name = format!("krablet-outlived-{}", std::process::id());
    let Some(top) = parent.map(|p| p.join(&name)) else {
        return;
    };
    let uid = PodUid::from("u");
    let cgroups = over(&[&top], CgroupDriver::Cgroupfs);
    let dirs = cgroups.pod_dirs(&uid, QosClass::BestEffort);
    let inner = dirs[0].join("container");
    if fs::create_dir_all(&inner).is_err() {
        return;
    }
    let mut child = std::process::Command::new("sleep")
        .arg("3600")
        .spawn()
        .unwrap();
    fs::write(inner.join("cgroup.procs"), child.id().to_string()).unwrap();
    let removed = cgroups.remove(&uid, QosClass::BestEffort).await;
    let ended = child.try_wait();
    let _ = child.kill();
    let _ = child.wait();
    remove_below(&top).unwrap();
    removed.unwrap();
    assert!(matches!(ended, Ok(Some(_))), "{ended:?}");
    assert!(!inner.exists());
}

#[tokio::test]
async fn lists_and_removes_in_every_hierarchy() {
    let (cpu, memory) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let cgroups = over(&[cpu.path(), memory.path()], CgroupDriver::Cgroupfs);
    fs::create_dir_all(cpu.path().join("kubepods/pod1/c1/deep")).unwrap();
    fs::create_dir_all(cpu.path().join("kubepods/pod1/c2")).unwrap();
    fs::create_dir_all(memory.path().join("kubepods/pod1")).unwrap();
    fs::create_dir_all(memory.path().join("kubepods/burstable/pod2")).unwrap();
    let both = vec![
        (PodUid::from("1"), QosClass::Guaranteed),
        (PodUid::from("2"), QosClass::Burstable),
    ];
    assert_eq!(cgroups.list_pods().await.unwrap(), both);
    assert!(
        cgroups
            .exists(&"1".into(), QosClass::Guaranteed)
            .await
            .unwrap()
    );

    cgroups
        .remove(&"1".into(), QosClass::Guaranteed)
        .await
        .unwrap();
    cgroups
        .remove(&"1".into(), QosClass::Guaranteed)
        .await
        .unwrap();
    assert!(
        !cgroups
            .exists(&"1".into(), QosClass::Guaranteed)
            .await
            .unwrap()
    );
    assert_eq!(cgroups.list_pods().await.unwrap(), both[1..]);
    assert!(cpu.path().join("kubepods").exists());
}

#[tokio::test]
async fn one_hierarchy_that_refuses_does_not_keep_the_others() {
    let (cpu, memory) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let cgroups = over(&[cpu.path(), memory.path()], CgroupDriver::Systemd);
    let name = cgroups.cgroup_parent(&"a-b".into(), QosClass::BestEffort);
    let name = name.trim_start_matches('/');
    for root in [cpu.path(), memory.path()] {
        fs::create_dir_all(root.join(name)).unwrap();
    }
    // A plain file cannot be in a cgroup; here it stands for what makes `rmdir` fail.
    fs::write(cpu.path().join(name).join("file"), "").unwrap();
    let error = cgroups
        .remove(&"a-b".into(), QosClass::BestEffort)
        .await
        .unwrap_err();
    assert!(error.to_string().contains(name), "{error}");
    assert!(!memory.path().join(name).exists());
    assert_eq!(
        cgroups.list_pods().await.unwrap(),
        [(PodUid::from("a-b"), QosClass::BestEffort)]
    );
}

#[tokio::test]
async fn real_cgroups() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: needs root");
        return;
    }
    let root = format!("/krablet-test-{}", std::process::id());
    let cgroups = HostCgroups::detect(CgroupDriver::Cgroupfs, &root, true)
        .await
        .unwrap();
    let uid = PodUid::from("0f-1");
    let name = cgroups.cgroup_parent(&uid, QosClass::Burstable);
    let limits = CgroupLimits {
        cpu_shares: Some(512),
        pids: Some(77),
        ..CgroupLimits::default()
    };
    let made = cgroups.create(&uid, QosClass::Burstable, &limits).await;
    let child = format!("{name}/container");
    let child = cgroups.dirs(&child);
    let mut child = child
        .iter()
        .filter(|c| c.parent().is_some_and(Path::exists));
    if let Err(e) = made.and_then(|()| child.try_for_each(fs::create_dir)) {
        println!("skipped: cannot make a cgroup: {e}");
        let _ = cgroups.dirs(&root).iter().try_for_each(|d| remove_below(d));
        return;
    }
    let pids: Vec<_> = cgroups
        .dirs(&name)
        .iter()
        .filter_map(|dir| fs::read_to_string(dir.join("pids.max")).ok())
        .collect();
    let listed = cgroups.list_pods().await;
    let removed = cgroups.remove(&uid, QosClass::Burstable).await;
    let left = cgroups.exists(&uid, QosClass::Burstable).await;
    for dir in cgroups.dirs(&root) {
        remove_below(&dir).unwrap();
    }
    assert_eq!(listed.unwrap(), [(uid, QosClass::Burstable)]);
    assert!(pids.iter().all(|p| p.trim() == "77"), "{pids:?}");
    removed.unwrap();
    assert!(!left.unwrap());
}
