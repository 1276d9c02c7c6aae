use super::tests::{FABRIC, Machine, ROOT, mapped, set_up};
use super::*;
use krablet_linux::fake::{FakeTools, Fault, MemoryFiles};
use krablet_linux::{EntryKind, ToolOutput};
use serde_json::json;

/// Nothing in a record leads the clean-up elsewhere.
#[tokio::test]
async fn a_record_that_leads_elsewhere_is_not_followed() {
    let machine = Machine::new();
    let mut recorded = set_up(&machine, "u-1").await;
    for point in ["/etc", "plugins/../../etc", "pods/u-1"] {
        recorded.outside.as_mut().unwrap()["point"] = json!(point);
        let before = machine.tools.ran().len();
        machine.plugin().tear_down(&recorded).await.unwrap();
        assert_eq!(machine.tools.ran().len(), before, "{point}");
    }
}

/// Lines that take a device off the node.
fn removals(tools: &FakeTools) -> Vec<String> {
    let ran = tools.ran().into_iter();
    ran.filter(|line| line.contains("/device/delete") || line.contains("--flushbufs"))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn a_disk_of_a_fabric_leaves_the_node_with_its_last_pod() {
    let machine = Machine::new();
    let (files, tools) = (&machine.files, FakeTools::default());
    let sdq = Path::new("/dev/sdq");
    files.put(sdq, EntryKind::BlockDevice).unwrap();
    let link = Path::new(FABRIC);
    files.symlink(Path::new("../../sdq"), link).await.unwrap();
    let plugin = machine.plugin_over(DiskKind::FibreChannel, files, &tools);
    let source = json!({"fc": {"targetWWNs": ["500a0981891b8dc5"], "lun": 0}});
    let first = mapped(&plugin, "u-1", source.clone()).await;
    let second = mapped(&plugin, "u-2", source).await;
    // The same disk, mounted for somebody.
    let point = format!("{ROOT}/plugins/kubernetes.io/fc/500a0981891b8dc5-lun-0");
    files
        .create_dir_all(Path::new(&point), 0o750)
        .await
        .unwrap();
    plugin.tear_down(&first).await.unwrap();
    plugin.tear_down(&second).await.unwrap();
    assert!(removals(&tools).is_empty(), "{:?}", tools.ran());
    files.remove_dir(Path::new(&point)).await.unwrap();
    plugin.tear_down(&second).await.unwrap();
    let gone =
        "sh -c [ ! -w /sys/block/sdq/device/delete ] || echo 1 > /sys/block/sdq/device/delete";
    assert_eq!(removals(&tools), ["blockdev --flushbufs /dev/sdq", gone]);
    // The link stays until udev has heard of it.
    files.remove_file(sdq).await.unwrap();
    plugin.tear_down(&second).await.unwrap();
    assert_eq!(removals(&tools).len(), 2, "{:?}", tools.ran());
}

#[tokio::test(start_paused = true)]
async fn devices_of_a_session_go_before_it_ends() {
    let machine = Machine::new();
    let (files, tools) = (&machine.files, FakeTools::default());
    session::fake::put(files, 2, "iqn.x:d", "default").await;
    for (lun, name) in [(0, "sdb"), (1, "sdc")] {
        session::fake::put_disk(files, 2, lun, name);
    }
    let plugin = machine.plugin_over(DiskKind::Iscsi, files, &tools);
    let source = |lun| json!({"iscsi": {"targetPortal": "10.0.0.1", "iqn": "iqn.x:d", "lun": lun}});
    let first = mapped(&plugin, "u-1", source(0)).await;
    let other =
        format!("{ROOT}/plugins/kubernetes.io/iscsi/iface-default/10.0.0.1:3260-iqn.x:d-lun-1");
    files
        .create_dir_all(Path::new(&other), 0o750)
        .await
        .unwrap();
    plugin.tear_down(&first).await.unwrap();
    let gone =
        "sh -c [ ! -w /sys/block/sdb/device/delete ] || echo 1 > /sys/block/sdb/device/delete";
    assert_eq!(
        removals(&tools),
        [gone],
        "the other disk of the target stays"
    );
    let ends = |line: &String| line.ends_with("--logout");
    assert!(!tools.ran().iter().any(ends), "{:?}", tools.ran());
    files.remove_dir(Path::new(&other)).await.unwrap();
    let before = tools.ran().len();
    plugin.tear_down(&first).await.unwrap();
    let ran = tools.ran().split_off(before);
    let removal = ran.iter().position(|line| line == gone);
    assert!(
        removal.is_some() && removal < ran.iter().position(ends),
        "{ran:?}"
    );
}

const OWN: &str = "10.0.0.1:3260:pv-1";

/// A disk of a session by an interface of its own, with another disk beside it that no pod has.
async fn with_a_neighbour(files: &MemoryFiles, joined: bool) {
    session::fake::put(files, 2, "iqn.x:d", OWN).await;
    for (lun, name) in [(0, "sdb"), (7, "sdc")] {
        session::fake::put_disk(files, 2, lun, name);
        let block = Path::new("/sys/block").join(name);
        files.put(&block, EntryKind::Directory).unwrap();
    }
    if joined {
        let way = Path::new("/sys/block/dm-3/slaves/sdb");
        files.put(way, EntryKind::Directory).unwrap();
    }
}

/// Lines that end a session, or take away what it goes by.
fn ends(tools: &FakeTools) -> Vec<String> {
    let ran = tools.ran().into_iter();
    ran.filter(|line| line.ends_with("--logout") || line.ends_with("-o delete"))
        .collect()
}

/// Every device of a session goes when it ends.
#[tokio::test(start_paused = true)]
async fn a_session_stays_for_whoever_uses_a_disk_of_it() {
    let source = json!({"iscsi": {"targetPortal": "10.0.0.1", "iqn": "iqn.x:d", "lun": 0, "initiatorName": "iqn.x:me"}});
    // Who uses what, and whether the disk itself goes.
    for (who, goes) in [
        ("the disk", false),
        ("its neighbour", true),
        ("what joins it", false),
        ("nobody knows", false),
        ("nobody", true),
    ] {
        let machine = Machine::new();
        let files = &machine.files;
        let busy = who == "what joins it";
        with_a_neighbour(files, busy).await;
        let tools = FakeTools::answering(move |line| {
            Ok(ToolOutput {
                code: Some(i32::from(busy && line.starts_with("multipath"))),
                text: String::new(),
            })
        });
        let plugin = machine.plugin_over(DiskKind::Iscsi, files, &tools);
        let recorded = mapped(&plugin, "u-1", source.clone()).await;
        let point = Path::new("/mnt/of-somebody");
        files.put(point, EntryKind::Directory).unwrap();
        let mount = |device: &str| {
            let mounts = files.mounts();
            mounts.put_from("btrfs", Path::new(device), point).unwrap();
        };
        match who {
            "the disk" => mount("/dev/sdb"),
            "its neighbour" => mount("/dev/sdc"),
            "nobody knows" => files.set_faults(|call, path| {
                let all = call == "mounts_below" && path == Path::new("/");
                all.then(|| Fault::Before(io::ErrorKind::PermissionDenied.into()))
            }),
            _ => {}
        }
        plugin.tear_down(&recorded).await.unwrap();
        assert_eq!(!removals(&tools).is_empty(), goes, "{who}");
        let node = "iscsiadm -m node -p 10.0.0.1:3260 -T iqn.x:d -I";
        let expected = [
            format!("{node} {OWN} --logout"),
            format!("{node} {OWN} -o delete"),
            format!("iscsiadm -m iface -I {OWN} -o delete"),
        ];
        let expected = match who {
            "nobody" => &expected[..],
            _ => &[],
        };
        assert_eq!(ends(&tools), expected, "{who}");
    }
}

/// Two volumes that know one disk by different names.
#[tokio::test(start_paused = true)]
async fn a_disk_that_is_about_to_be_used_under_another_name_stays() {
    let machine = Machine::new();
    let (files, tools) = (&machine.files, FakeTools::default());
    let by_id = Path::new("/dev/disk/by-id/scsi-3600");
    let dir = Path::new("/dev/disk/by-id");
    files.put(dir, EntryKind::Directory).unwrap();
    let device = Path::new("/dev/sdq");
    files.put(device, EntryKind::BlockDevice).unwrap();
    for link in [Path::new(FABRIC), by_id] {
        let target = Path::new("../../sdq");
        files.symlink(target, link).await.unwrap();
    }
    let plugin = machine.plugin_over(DiskKind::FibreChannel, files, &tools);
    let by_target = json!({"fc": {"targetWWNs": ["500a0981891b8dc5"], "lun": 0}});
    let recorded = mapped(&plugin, "u-1", by_target).await;
    let other = serde_json::from_value(json!({"wwids": ["3600"]})).unwrap();
    let attached = plugin.attach(&Address::fc(&other), None).await.unwrap();
    assert_eq!(attached.path, by_id);
    let used = async {
        tokio::time::sleep(Duration::from_secs(120)).await;
        assert!(removals(&tools).is_empty(), "{:?}", tools.ran());
        let point = Path::new("/mnt/of-the-other");
        files.put(point, EntryKind::Directory).unwrap();
        files.mounts().put_from("ext4", by_id, point).unwrap();
        drop(attached);
    };
    let (gone, ()) = tokio::join!(plugin.tear_down(&recorded), used);
    gone.unwrap();
    assert!(removals(&tools).is_empty(), "{:?}", tools.ran());
}

const OTHER_PORT: &str = "/dev/disk/by-path/pci-0000:42:00.0-fc-0x500a0981891b8dc5-lun-0";
const BY_ID: &str = "/dev/disk/by-id/scsi-3600";

/// A way to a disk, as a look at the fabric brings it.
fn put_way(files: &MemoryFiles, name: &str) -> io::Result<()> {
    files.put(&Path::new("/dev").join(name), EntryKind::BlockDevice)?;
    let identity = Path::new("/sys/block").join(name).join("device/wwid");
    files.put_file(&identity, b"naa.600\n")
}

async fn lead_to(files: &MemoryFiles, links: &[(&str, &str)]) {
    for (link, name) in links {
        let link = Path::new(link);
        let dir = link.parent().unwrap();
        files.put(dir, EntryKind::Directory).unwrap();
        let target = Path::new("../..").join(name);
        files.symlink(&target, link).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_comes_back_is_used_once_its_ways_are_joined() {
    let by_target = json!({"targetWWNs": ["500a0981891b8dc5"], "lun": 0});
    let by_id = json!({"wwids": ["3600"]});
    // The names it has, its ways, whether they were joined when it went, and how it is used.
    for (source, links, ways, was_joined, used_as) in [
        (
            &by_target,
            &[(FABRIC, "sdq"), (OTHER_PORT, "sdr")][..],
            &["sdq", "sdr"][..],
            false,
            "/dev/dm-3",
        ),
        (
            &by_id,
            &[(BY_ID, "sdr")],
            &["sdq", "sdr"],
            false,
            "/dev/dm-3",
        ),
        (&by_target, &[(FABRIC, "sdq")], &["sdq"], true, "/dev/dm-3"),
        // Nobody waits for what will not be.
        (&by_target, &[(FABRIC, "sdq")], &["sdq"], false, FABRIC),
    ] {
        let machine = Machine::new();
        let files = &machine.files;
        let (seen, coming) = (files.clone(), ways.to_vec());
        let tools = FakeTools::answering(move |line| {
            if line.contains("/sys/class/scsi_host/host*/scan") {
                coming.iter().try_for_each(|way| put_way(&seen, way))?;
            }
            Ok(ToolOutput {
                code: Some(0),
                text: String::new(),
            })
        });
        lead_to(files, links).await;
        let plugin = machine.plugin_over(DiskKind::FibreChannel, files, &tools);
        let slaves = Path::new("/sys/block/dm-3/slaves");
        let slaves: Vec<PathBuf> = ways.iter().map(|way| slaves.join(way)).collect();
        if was_joined {
            put_way(files, ways[0]).unwrap();
            files.put(&slaves[0], EntryKind::Directory).unwrap();
            // The agent that took it is not the one that lets it go.
            let earlier = machine.plugin_over(DiskKind::FibreChannel, files, &tools);
            let recorded = mapped(&earlier, "u-1", json!({"fc": source})).await;
            plugin.tear_down(&recorded).await.unwrap();
            let parted = "multipath -f /dev/dm-3".to_owned();
            assert!(tools.ran().contains(&parted), "{:?}", tools.ran());
            files.remove_tree(Path::new("/sys/block")).await.unwrap();
            let device = Path::new("/dev").join(ways[0]);
            files.remove_file(&device).await.unwrap();
        }
        let address = Address::fc(&serde_json::from_value(source.clone()).unwrap());
        let (begun, later) = (Instant::now(), files.clone());
        let joins = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(3)).await;
            for slave in &slaves {
                later.put(slave, EntryKind::Directory).unwrap();
            }
        });
        let attached = plugin.attach(&address, None).await.unwrap();
        let (took, at_once) = (begun.elapsed(), used_as == FABRIC);
        assert_eq!(attached.path, Path::new(used_as), "{links:?}");
        assert_eq!(took < Duration::from_secs(3), at_once, "{links:?} {took:?}");
        joins.await.unwrap();
    }
}
