//! The test bed by hand: build its parts, bring up a bed to look at, run the node of `make run`.

use anyhow::{Result, bail};
use krablet_testbed::parts::Part;
use krablet_testbed::{
    Bed, BedOptions, ControlPlane, ControlPlaneOptions, RawPod, interrupted, parts, standalone,
    sweep,
};

const USAGE: &str = "\
usage: krablet-lab COMMAND

  parts [NAME...]    build parts of the test bed (default: containerd cni; `all` for all of them)
  bed [--pods N]     bring up a bed, with N pods in it, and hold it until Ctrl-C
  cluster            bring up a control plane, and a bed for a node to join it from, and hold them
                     until Ctrl-C
  run                run krablet standalone on a copy of examples/ and show its pods until Ctrl-C;
                     RUNTIME=unix://PATH uses the container runtime at that socket, if it has
                     no pods; KRABLET_TAKE_RUNTIME=1 uses it all the same, and ends them
  clean              remove what beds left behind whose keeper was killed";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["parts", names @ ..] => build_parts(names),
        ["bed"] => hold_bed(0).await,
        ["bed", "--pods", count] => hold_bed(count.parse()?).await,
        ["cluster"] => hold_cluster().await,
        ["run"] => standalone(&std::env::var("RUNTIME").unwrap_or_default()).await,
        ["clean"] => {
            for dir in sweep()? {
                println!("removed {dir}");
            }
            Ok(())
        }
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            Ok(())
        }
        _ => bail!("{USAGE}"),
    }
}

fn build_parts(names: &[&str]) -> Result<()> {
    let wanted = match names {
        [] => vec![Part::Containerd, Part::Cni],
        ["all"] => Part::ALL.to_vec(),
        names => names
            .iter()
            .map(|name| name.parse())
            .collect::<Result<_>>()?,
    };
    for dir in parts::ensure(&wanted)?.dirs() {
        println!("{}", dir.display());
    }
    Ok(())
}

async fn hold_bed(pods: usize) -> Result<()> {
    let bed = Bed::up(BedOptions::default()).await?;
    let runtime = bed.runtime()?;
    for number in 0..pods {
        RawPod::run(&bed, &runtime, &format!("pod-{number}"), &["hold"]).await?;
    }
    println!("{} {}", bed.name(), bed.cri_endpoint());
    println!(
        "cgroup parent {}, files in {}; Ctrl-C takes it all down",
        bed.cgroup_parent(),
        bed.dir().display()
    );
    interrupted().await;
    bed.down().await
}

async fn hold_cluster() -> Result<()> {
    let plane = ControlPlane::up(ControlPlaneOptions::default()).await?;
    println!("{} {}", plane.name(), plane.server_url());
    let bed = Bed::up(BedOptions::default()).await?;
    println!("{} {}", bed.name(), bed.cri_endpoint());
    for (whose, path) in [
        ("administrator", plane.admin_kubeconfig()),
        ("joining node", plane.bootstrap_kubeconfig()),
        ("node called node1", plane.node_kubeconfig("node1")?),
    ] {
        println!("kubeconfig of the {whose}: {}", path.display());
    }
    println!("kubectl: {}", plane.bins().path("kubectl")?.display());
    println!(
        "cgroup parent {}, files in {} and {}; Ctrl-C takes it all down",
        bed.cgroup_parent(),
        plane.dir().display(),
        bed.dir().display()
    );
    interrupted().await;
    let down = bed.down().await;
    plane.down().await.and(down)
}
