//! What krablet does as a node of a real control plane: etcd, kube-apiserver,
//! kube-controller-manager and kube-scheduler, with the rights of a node and no more.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test may fail by panicking"
)]

mod access;
mod crashes;
mod debug;
mod deletions;
mod door;
mod door_files;
mod environment;
mod ephemeral_volumes;
mod hand_over;
mod hanging;
mod held_mounts;
mod identities;
mod images;
mod inside;
mod join;
mod local_storage;
mod log_reading;
mod mirrors;
mod more_security;
mod more_volumes;
mod names;
mod network_volumes;
mod node;
mod node_settings;
mod outages;
mod pod_certificates;
mod pods;
mod ports;
mod pulls;
mod reboot;
mod resize;
mod resources;
mod security;
mod server;
mod server_more;
mod server_state;
mod stats;
mod strategies;
mod terminals;
mod tokens;
mod users;
mod verification;
mod volume_events;
mod volumes;
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
            mirrors::one_that_is_refused,
            environment::keys_and_whole_objects,
            environment::what_is_missing_is_told_and_heals,
            environment::a_secret_that_comes_late,
            environment::what_a_pod_learns_of_itself,
            environment::services_of_the_namespace,
            environment::variables_from_a_file,
            volumes::content_is_seen_and_follows,
            volumes::what_is_missing_is_told_and_heals,
            volumes::a_group_owns_what_it_shares,
            volumes::parts_of_volumes,
            volumes::claims,
            volumes::identity_of_a_pod,
            volumes::an_image_as_a_volume,
            tokens::are_whole_while_they_are_renewed,
            tokens::of_an_account_that_is_gone,
            held_mounts::are_waited_for,
            volume_events::a_group_that_others_did_not_give,
            volume_events::kinds_of_host_paths,
            strategies::get,
            images::a_pull_secret_right_wrong_and_mended,
            images::tokens_and_digests,
            images::names_policies_and_failures,
            images::a_cached_image_waits_for_no_pull,
            images::credential_providers,
            pulls::credentials_of_the_node,
            pulls::side_by_side,
            verification::always,
            verification::never,
            verification::all_but_a_list,
            images::runtime_classes,
            images::unused_images_go_by_age,
            images::unused_images_go_for_space,
            names::resolvers_hosts_and_hostnames,
            names::without_a_cluster_dns,
            security::users_and_groups,
            security::confinement,
            security::namespaces_and_sysctls,
            security::app_armor,
            security::settings_of_the_node,
            security::what_an_old_runtime_cannot_do,
            more_security::unmasked_proc,
            more_security::labels_of_selinux,
            more_security::groups_of_a_persistent_volume,
            more_security::scores_when_memory_is_short,
            ports::of_the_node,
            ports::on_the_nodes_network,
            ports::limits_of_traffic,
            ports::of_sctp,
            debug::a_running_pod,
            debug::a_container_that_is_not_there,
            debug::a_pod_that_shares_its_processes,
            more_volumes::block_devices,
            more_volumes::mounts_within_mounts,
            more_volumes::changes_arrive_soon,
            more_volumes::huge_pages,
            network_volumes::what_the_host_cannot_bring,
            network_volumes::a_group_is_given_a_volume_once,
            resources::pods_and_classes_are_held_to_their_limits,
            resources::reservations_that_cannot_be_kept,
            local_storage::of_a_volume,
            local_storage::of_containers,
            resources::users_of_its_own,
            users::of_their_own,
            resize::while_it_runs,
            resize::as_a_whole,
            resize::with_a_restart,
            resize::without_room,
            resize::never_on_this_node,
            resize::killed_in_between,
            resize::less_than_is_used,
            workloads::job_with_completions,
            workloads::job_gives_up_at_its_back_off_limit,
            workloads::daemon_set,
            node::second_agent_on_a_root_directory_refuses,
            join::bad_kubeconfigs_end_it_with_one_line,
            server::logs,
            server::followed_logs,
            server::commands,
            server::ports,
            terminals::commands_in_one,
            terminals::attached,
            log_reading::of_an_earlier_life,
            log_reading::parts_of_it,
            log_reading::a_line_is_seen_when_it_is_written,
            log_reading::rotated_and_large,
            stats::figures,
            stats::each_container_and_the_pod,
            stats::top,
            server_more::pages,
            server_more::checkpoints,
            server_more::web_socket,
            server_more::web_socket_to_a_port,
            server_state::resources_of_pods,
            server_state::volumes_in_metrics,
            server_state::read_only_port,
            server_state::run_and_running_pods,
            server_state::configuration,
            server_state::profile,
            server_state::verbosity,
            server_more::large_copy,
            server_more::serving_certificate,
            access::who_gets_in,
            door_files::are_read_again,
            workloads::drain,
            door::no_execute_taint,
            door::disk_pressure,
            node::deleted_and_back,
            crashes::killed_amid_creations_and_deletions,
            crashes::readiness_outlives_the_agent,
            hand_over::from_the_kubelet_and_back,
            reboot::with_an_api_server,
            join::embedded_pair_is_adopted,
            identities::expired_certificate_joins_anew,
            identities::by_an_exec_plugin,
            identities::through_a_proxy,
            node_settings::registered_by_somebody_else,
            node_settings::of_an_external_cloud,
            node_settings::of_two_families,
            hanging::runtime_is_named,
            hanging::one_pod_is_no_reason,
            join::wrong_authority_is_told_and_retried,
            join::refused_request_is_told;
        alone:
            environment::watches_go_with_their_pods,
            strategies::cache,
            ephemeral_volumes::with_the_real_controllers,
            more_volumes::authorities_of_the_cluster,
            join::certificate_is_renewed_under_a_watch,
            outages::api_server_is_away_under_churn,
            outages::starts_without_an_api_server,
            outages::etcd_is_wiped,
            hanging::api_server_is_waited_for,
            identities::by_a_token_file,
            access::without_an_api_server,
            reboot::without_an_api_server;
    };
    krablet_e2e::harness::main(scenarios)
}
