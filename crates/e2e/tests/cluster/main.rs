//! What krablet does as a node of a real control plane: etcd, kube-apiserver,
//! kube-controller-manager and kube-scheduler, with the rights of a node and no more.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test may fail by panicking"
)]

mod crashes;
mod deletions;
mod door;
mod join;
mod mirrors;
mod node;
mod outages;
mod pods;
mod workloads;

use std::process::ExitCode;

fn main() -> ExitCode {
    let scenarios = krablet_e2e::scenarios! {
        on krablet_e2e::Member;
        shared:
            workloads::a_hundred_and_ten_pods_of_a_deployment,
            join::by_token,
            pods::events_are_seen_with_kubectl,
            pods::back_off_is_told_once_and_counted,
            pods::readiness_gates,
            deletions::graceful,
            deletions::forced,
            deletions::during_the_start,
            deletions::of_a_pod_in_back_off,
            deletions::with_a_pre_stop_that_hangs,
            deletions::and_again_under_the_same_name,
            door::too_large,
            door::of_another_kind_of_node,
            door::host_port_is_taken,
            door::critical_pod_finds_room,
            mirrors::follow_the_manifest,
            workloads::job_with_completions,
            workloads::job_gives_up_at_its_back_off_limit,
            workloads::daemon_set,
            node::second_agent_on_a_root_directory_refuses,
            join::bad_kubeconfigs_end_it_with_one_line,
            workloads::drain,
            door::no_execute_taint,
            node::deleted_and_back,
            crashes::killed_amid_creations_and_deletions,
            join::embedded_pair_is_adopted,
            join::wrong_authority_is_told_and_retried,
            join::refused_request_is_told;
        alone:
            join::certificate_is_renewed_under_a_watch,
            outages::api_server_is_away_under_churn,
            outages::starts_without_an_api_server,
            outages::etcd_is_wiped;
    };
    krablet_e2e::harness::main(scenarios)
}
