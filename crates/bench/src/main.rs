//! krablet measured against the raw CRI floor and, as a node of a cluster, against the upstream
//! kubelet, on this machine and in one run.
//!
//! Every number SPECIFICATION.md promises has a row here. A missed promise is said clearly and is
//! no failure: the machine decides too. Ratios come from runs taken in turn, since what else the
//! machine does would otherwise be counted as ours.

mod binary;
mod calls;
mod capture;
mod cluster;
mod floor;
mod idle;
mod lone;
mod memory;
mod node;
mod options;
mod pods;
mod probes;
mod report;
mod scale;
mod starts;
mod stats;
mod touched;
mod watch;

use anyhow::{Context, Result};

use options::{MEASURES, Options, USAGE};
use report::Row;

/// The agent's own allocator and settings: an agent is measured in this process too.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

#[cfg(feature = "jemalloc")]
#[allow(non_upper_case_globals, unsafe_code)]
#[unsafe(export_name = "_rjem_malloc_conf")]
pub static malloc_conf: &[u8] = b"narenas:1,tcache:false,dirty_decay_ms:1000,muzzy_decay_ms:0\0";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    if let (Some(scale::CHILD), Some(pods)) = (arguments.next().as_deref(), arguments.next()) {
        let with_agent = arguments.next().as_deref() == Some("agent");
        return scale::child(pods.parse()?, with_agent).await;
    }
    let Some(options) = Options::parse(std::env::args().skip(1))? else {
        println!("{USAGE}");
        return Ok(());
    };
    if let Some(file) = &options.order {
        return tokio::select! {
            biased;
            () = krablet_testbed::interrupted() => Ok(()),
            written = cluster::order::write(file) => written,
        };
    }
    let mut rows: Vec<Row> = Vec::new();
    let mut failed = Ok(());
    for measure in MEASURES {
        if options.wants(measure) {
            eprintln!("measuring {measure} …");
            let measured = tokio::select! {
                biased;
                () = krablet_testbed::interrupted() => return Ok(()),
                measured = run(measure, &options) => measured,
            };
            // What the others take half an hour to measure is not thrown away.
            match measured.with_context(|| format!("measure {measure}")) {
                Ok(measured) => rows.extend(measured),
                Err(error) => {
                    eprintln!("{error:#}");
                    failed = Err(error);
                }
            }
        }
    }
    print!("{}", report::table(&rows));
    print!("{}", report::missed(&rows));
    println!("{}", report::json_line(&rows, options.pods));
    failed
}

async fn run(measure: &str, options: &Options) -> Result<Vec<Row>> {
    match measure {
        "starts" => starts::measure(options).await,
        "lone" => lone::measure(options).await,
        "idle" => idle::measure(options).await,
        "memory" => memory::measure(options).await,
        "probes" => probes::measure(options).await,
        "scale" => scale::measure(options).await,
        options::CLUSTER => cluster::measure(options).await,
        options::SERVER => cluster::server::measure(options).await,
        options::CROWD => cluster::crowd::measure(options).await,
        options::CONTENT => cluster::content::measure(options).await,
        _ => binary::measure(),
    }
}
