//! The pod resources service, v1: which containers there are, and which resources each has to itself. There are no
//! exclusive CPUs, no memory pinned to NUMA nodes and no devices on this node, so these lists are empty, as the kubelet's
//! are with its policies `none` and without device plugins.

mod rate;

use std::sync::Arc;

use axum::Router;
use krablet_metrics::{CounterVec, PodResourceMetrics};
use krablet_pod::api::{Container, Pod};
use krablet_pod::containers::{init_containers, is_sidecar};
use tonic::service::Routes;
use tonic::service::interceptor::InterceptedService;
use tonic::{Request, Response, Status};

use crate::rate::Rate;
use crate::v1::pod_resources_lister_server::{PodResourcesLister, PodResourcesListerServer};

/// The interface's messages, generated from `proto/podresources.proto`.
#[allow(clippy::all, clippy::unwrap_used, clippy::expect_used)]
pub mod v1 {
    tonic::include_proto!("v1");
}

/// Of the interface, as it is counted.
const VERSION: &str = "v1";
/// Requests a second that are answered, and how many of them at once.
const PER_SECOND: u32 = 100;
const BURST: u32 = 10;

/// The node's pods, each with its status.
pub trait Pods: Send + Sync {
    fn pods(&self) -> Vec<Pod>;
    fn pod(&self, namespace: &str, name: &str) -> Option<Pod>;
}

/// The service, for a listener that speaks HTTP/2.
pub fn routes(pods: Arc<dyn Pods>, metrics: PodResourceMetrics) -> Router {
    let rate = Rate::new(PER_SECOND, BURST);
    let limit = move |request: Request<()>| match rate.take() {
        true => Ok(request),
        false => Err(Status::resource_exhausted("rejected by rate limit")),
    };
    let lister = PodResourcesListerServer::new(Lister { pods, metrics });
    let limited = InterceptedService::new(lister, limit);
    Routes::new(limited).into_axum_router()
}

struct Lister {
    pods: Arc<dyn Pods>,
    metrics: PodResourceMetrics,
}

impl Lister {
    /// Those that are refused for being too many are not counted.
    fn count(&self, kind: &CounterVec) {
        self.metrics.requests.add(&[VERSION], 1);
        kind.add(&[VERSION], 1);
    }
}

#[tonic::async_trait]
impl PodResourcesLister for Lister {
    async fn list(
        &self,
        _: Request<v1::ListPodResourcesRequest>,
    ) -> Result<Response<v1::ListPodResourcesResponse>, Status> {
        self.count(&self.metrics.list);
        let pods = self.pods.pods();
        let active = pods.iter().filter(|pod| !has_ended(pod));
        Ok(Response::new(v1::ListPodResourcesResponse {
            pod_resources: active.map(resources).collect(),
        }))
    }

    async fn get_allocatable_resources(
        &self,
        _: Request<v1::AllocatableResourcesRequest>,
    ) -> Result<Response<v1::AllocatableResourcesResponse>, Status> {
        self.count(&self.metrics.allocatable);
        Ok(Response::new(v1::AllocatableResourcesResponse::default()))
    }

    async fn get(
        &self,
        request: Request<v1::GetPodResourcesRequest>,
    ) -> Result<Response<v1::GetPodResourcesResponse>, Status> {
        let v1::GetPodResourcesRequest {
            pod_name,
            pod_namespace,
        } = request.into_inner();
        self.count(&self.metrics.get);
        let pod = self.pods.pod(&pod_namespace, &pod_name);
        let pod = pod.ok_or_else(|| {
            self.metrics.get_errors.add(&[VERSION], 1);
            let why = format!("pod {pod_name} in namespace {pod_namespace} not found");
            Status::unknown(why)
        })?;
        Ok(Response::new(v1::GetPodResourcesResponse {
            pod_resources: Some(resources(&pod)),
        }))
    }
}

fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// Those that run as long as the pod: sidecars and regular containers.
fn resources(pod: &Pod) -> v1::PodResources {
    let container = |container: &Container| v1::ContainerResources {
        name: container.name.clone(),
        ..v1::ContainerResources::default()
    };
    let containers = pod.spec.as_ref().map(|spec| {
        let sidecars = init_containers(spec).iter().filter(|c| is_sidecar(c));
        sidecars.chain(&spec.containers).map(container).collect()
    });
    v1::PodResources {
        name: pod.metadata.name.clone().unwrap_or_default(),
        namespace: pod.metadata.namespace.clone().unwrap_or_default(),
        containers: containers.unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use krablet_pod::api::{PodSpec, PodStatus};
    use tonic::Code;

    use super::*;
    use crate::v1::pod_resources_lister_client::PodResourcesListerClient;

    struct Node;

    fn pod(name: &str, phase: &str) -> Pod {
        let named = |name: &str, policy: Option<&str>| Container {
            name: name.to_owned(),
            restart_policy: policy.map(str::to_owned),
            ..Container::default()
        };
        let mut pod = Pod::default();
        pod.metadata.name = Some(name.to_owned());
        pod.metadata.namespace = Some("ns".to_owned());
        pod.spec = Some(PodSpec {
            init_containers: Some(vec![named("init", None), named("side", Some("Always"))]),
            containers: vec![named("main", None)],
            ..PodSpec::default()
        });
        pod.status = Some(PodStatus {
            phase: Some(phase.to_owned()),
            ..PodStatus::default()
        });
        pod
    }

    impl Pods for Node {
        fn pods(&self) -> Vec<Pod> {
            vec![pod("web", "Running"), pod("job", "Succeeded")]
        }
        fn pod(&self, namespace: &str, name: &str) -> Option<Pod> {
            let mut pods = self.pods().into_iter();
            pods.find(|p| namespace == "ns" && p.metadata.name.as_deref() == Some(name))
        }
    }

    fn count(counted: &CounterVec) -> u64 {
        counted.get().into_values().sum()
    }

    fn shown(pod: &v1::PodResources) -> String {
        let containers: Vec<&str> = pod.containers.iter().map(|c| c.name.as_str()).collect();
        format!("{}/{}: {}", pod.namespace, pod.name, containers.join(" "))
    }

    #[tokio::test(start_paused = true)]
    async fn answers() {
        let metrics = PodResourceMetrics::default();
        let routes = routes(Arc::new(Node), metrics.clone());
        let mut client = PodResourcesListerClient::new(routes);
        let list = client.list(v1::ListPodResourcesRequest {}).await.unwrap();
        let list: Vec<String> = list.get_ref().pod_resources.iter().map(shown).collect();
        assert_eq!(list, ["ns/web: side main"]);
        let all = client.get_allocatable_resources(v1::AllocatableResourcesRequest {});
        let all = all.await.unwrap().into_inner();
        assert_eq!(all, v1::AllocatableResourcesResponse::default());
        let ask = |name: &str| v1::GetPodResourcesRequest {
            pod_name: name.to_owned(),
            pod_namespace: "ns".to_owned(),
        };
        let one = client.get(ask("job")).await.unwrap().into_inner();
        assert_eq!(shown(&one.pod_resources.unwrap()), "ns/job: side main");
        let none = client.get(ask("other")).await.unwrap_err();
        assert_eq!(none.code(), Code::Unknown);
        assert_eq!(none.message(), "pod other in namespace ns not found");
        for (counted, expected) in [
            (&metrics.requests, 4),
            (&metrics.list, 1),
            (&metrics.allocatable, 1),
            (&metrics.get, 2),
            (&metrics.get_errors, 1),
        ] {
            assert_eq!(count(counted), expected, "{counted:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn too_many_requests() {
        let metrics = PodResourceMetrics::default();
        let routes = routes(Arc::new(Node), metrics.clone());
        let mut client = PodResourcesListerClient::new(routes);
        for _ in 0..BURST {
            client.list(v1::ListPodResourcesRequest {}).await.unwrap();
        }
        let refused = client.list(v1::ListPodResourcesRequest {}).await;
        let refused = refused.unwrap_err();
        assert_eq!(refused.code(), Code::ResourceExhausted);
        assert_eq!(refused.message(), "rejected by rate limit");
        assert_eq!(count(&metrics.requests), u64::from(BURST));
        tokio::time::advance(std::time::Duration::from_millis(10)).await;
        client.list(v1::ListPodResourcesRequest {}).await.unwrap();
    }
}
