//! The services of the cluster, as environments tell of them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use async_trait::async_trait;
use krablet_kube::{Kube, Reach, Reflector, ReflectorConfig, Sink, paths};
use krablet_pod::api::{Service, ServicePort, ServiceSpec};
use tokio::sync::watch;

use crate::Bell;
use crate::cluster::SharedTable;
use crate::object::slim;

/// The list of services has not come yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("services have not yet been read at least once, cannot construct envvars")]
pub struct NotRead;

pub trait Services: Send + Sync {
    /// All services there are, by namespace and name. A node without a cluster has none.
    fn all(&self) -> Result<Arc<[Arc<Service>]>, NotRead>;
}

/// The services of an API server. Clones share one list.
#[derive(Clone)]
pub(crate) struct ClusterServices {
    inner: Arc<Inner>,
}

struct Inner {
    list: Mutex<Option<Arc<[Arc<Service>]>>>,
    known: Option<Arc<[Arc<Service>]>>,
    /// How it stands between us and the server.
    reach: OnceLock<watch::Receiver<Reach>>,
    /// Somebody was sent away because there was no list yet.
    missed: AtomicBool,
    table: SharedTable,
    bell: Bell,
}

/// The services of an earlier life, and who writes down those of this one.
#[derive(Default)]
pub struct Memory {
    /// Counts only while the API server cannot be reached.
    pub known: Option<Arc<[Arc<Service>]>>,
    pub save: Option<Save>,
}

pub type Save = Box<dyn Fn(&[Arc<Service>]) + Send + Sync>;

/// Where the list goes. Belongs to the task, and with it whoever writes it down.
struct Listed {
    services: ClusterServices,
    save: Option<Save>,
}

/// Keeps the list as the API server has it.
pub struct ServicesTask {
    reflector: Reflector<Service, Listed>,
    services: ClusterServices,
    reach: watch::Receiver<Reach>,
}

impl ServicesTask {
    /// Never ends.
    pub async fn run(self) {
        let Self {
            reflector,
            services,
            mut reach,
        } = self;
        let without_server = async {
            while reach.changed().await.is_ok() {
                if reach.borrow_and_update().error.is_some() {
                    services.ring_those_missed();
                }
            }
        };
        tokio::join!(reflector.run(), without_server);
    }
}

impl ClusterServices {
    pub(crate) fn build(
        kube: &Kube,
        table: SharedTable,
        bell: Bell,
        memory: Memory,
        seed: u64,
    ) -> (Self, ServicesTask) {
        let services = Self {
            inner: Arc::new(Inner {
                list: Mutex::default(),
                known: memory.known,
                reach: OnceLock::new(),
                missed: AtomicBool::new(false),
                table,
                bell,
            }),
        };
        let config = ReflectorConfig {
            path: paths::SERVICES.to_owned(),
            query: Vec::new(),
            slim: Box::new(|service, _| slim_service(service)),
            seed,
        };
        let listed = Listed {
            services: services.clone(),
            save: memory.save,
        };
        let (reflector, reach) = Reflector::new(kube.api().clone(), config, listed);
        // Empty until now: it was made above.
        let _ = services.inner.reach.set(reach.clone());
        let task = ServicesTask {
            reflector,
            services: services.clone(),
            reach,
        };
        (services, task)
    }

    /// What was known before, if the server is away and cannot say what is now.
    fn remembered(&self) -> Option<Arc<[Arc<Service>]>> {
        let away = |reach: &watch::Receiver<Reach>| reach.borrow().error.is_some();
        let known = self.inner.known.clone();
        known.filter(|_| self.inner.reach.get().is_some_and(away))
    }

    fn put(&self, services: Arc<[Arc<Service>]>) {
        {
            let list = self.inner.list.lock();
            let mut list = list.unwrap_or_else(PoisonError::into_inner);
            *list = Some(services);
        }
        self.ring_those_missed();
    }

    fn ring_those_missed(&self) {
        if self.inner.missed.swap(false, Ordering::Relaxed) {
            // Who of them was sent away is not known; there are no others so early.
            let pods = self.inner.table.lock().pods();
            self.inner.bell.ring(pods);
        }
    }
}

impl Services for ClusterServices {
    fn all(&self) -> Result<Arc<[Arc<Service>]>, NotRead> {
        let list = self.inner.list.lock();
        let list = list.unwrap_or_else(PoisonError::into_inner);
        let found = list.clone().or_else(|| self.remembered());
        if found.is_none() {
            self.inner.missed.store(true, Ordering::Relaxed);
        }
        found.ok_or(NotRead)
    }
}

#[async_trait]
impl Sink<Service> for Listed {
    async fn set(&mut self, objects: Vec<Arc<Service>>) {
        if let Some(save) = &self.save {
            save(&objects);
        }
        self.services.put(objects.into());
    }
}

/// A cluster has thousands of services, and of each only its address and ports are of use.
fn slim_service(service: &mut Service) {
    slim(service);
    service.status = None;
    let spec = service.spec.take().unwrap_or_default();
    let ports = spec.ports.unwrap_or_default().into_iter();
    let ports = ports.map(|port| ServicePort {
        name: port.name,
        port: port.port,
        protocol: port.protocol,
        ..ServicePort::default()
    });
    service.spec = Some(ServiceSpec {
        cluster_ip: spec.cluster_ip,
        ports: Some(ports.collect()),
        ..ServiceSpec::default()
    });
}
