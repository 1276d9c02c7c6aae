//! What projected volumes show that the API server is asked for and that is followed from then on: certificates of pods, and
//! bundles of authorities.

use std::sync::Arc;

use krablet_kube::OnDemandTask;
use krablet_linux::WallClock;
use krablet_objects::Bell;
use krablet_podcerts::{CertificateDeps, KubeSigning, PodCertificates, Request};
use krablet_volumes::{TrustBundle, TrustBundles};
use tokio::task::JoinSet;

use crate::cluster::Cluster;

/// Which of them this node offers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Offers {
    pub certificates: bool,
    pub trust_bundles: bool,
}

/// As volumes are handed them.
#[derive(Default)]
pub(crate) struct Projections {
    pub(crate) certificates: Option<PodCertificates>,
    pub(crate) trust_bundles: Option<TrustBundles>,
    pub(crate) tasks: ProjectionTasks,
}

#[derive(Default)]
pub(crate) struct ProjectionTasks {
    certificates: Option<(PodCertificates, OnDemandTask<Request>)>,
    trust_bundles: Option<(TrustBundles, OnDemandTask<TrustBundle>)>,
}

impl Projections {
    /// Nothing is asked of the API server before a pod wants it.
    pub(crate) fn of(cluster: &Cluster, clock: &Arc<dyn WallClock>, seed: u64) -> Self {
        let Offers {
            certificates,
            trust_bundles,
        } = cluster.offers;
        let certificates = certificates.then(|| signed(cluster, clock, seed));
        let trust_bundles = trust_bundles.then(|| trusted(cluster, seed));
        Self {
            certificates: certificates.as_ref().map(|(own, _)| own.clone()),
            trust_bundles: trust_bundles.as_ref().map(|(own, _)| own.clone()),
            tasks: ProjectionTasks {
                certificates,
                trust_bundles,
            },
        }
    }
}

fn signed(
    cluster: &Cluster,
    clock: &Arc<dyn WallClock>,
    seed: u64,
) -> (PodCertificates, OnDemandTask<Request>) {
    let api = cluster.kube.api().clone();
    let (requests, task) = krablet_podcerts::requests_of(api, &cluster.node_name, seed);
    let certificates = PodCertificates::new(CertificateDeps {
        signing: Arc::new(KubeSigning {
            kube: cluster.kube.clone(),
            node_name: cluster.node_name.clone(),
            node: cluster.node.clone(),
        }),
        requests,
        clock: clock.clone(),
        recorder: cluster.recorder.clone(),
        shelf: cluster.keepsakes.secret.clone(),
        seed,
    });
    (certificates, task)
}

fn trusted(cluster: &Cluster, seed: u64) -> (TrustBundles, OnDemandTask<TrustBundle>) {
    let api = cluster.kube.api().clone();
    let (bundles, task) = krablet_volumes::trust_bundles_of(api, seed);
    let bundles = TrustBundles::new(bundles, cluster.keepsakes.open.clone());
    (bundles, task)
}

impl ProjectionTasks {
    /// The bell rings for pods that are to see something new.
    pub(crate) fn spawn(self, bell: &Bell, tasks: &mut JoinSet<()>) {
        if let Some((certificates, source)) = self.certificates {
            let bell = bell.clone();
            tasks.spawn(source.run());
            tasks.spawn(certificates.watch(move |pods| bell.ring(pods)));
        }
        if let Some((bundles, source)) = self.trust_bundles {
            let bell = bell.clone();
            tasks.spawn(source.run());
            tasks.spawn(bundles.watch(move |pods| bell.ring(pods)));
        }
    }
}
