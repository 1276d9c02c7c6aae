//! What krablet does, seen on a real containerd.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test may fail by panicking"
)]

mod agents;
mod crashes;
mod crowds;
mod life;
mod node;
mod object_volumes;
mod objects;
mod order;
mod outages;
mod probes;
mod restarts;
mod takeover;
mod volumes;

use std::process::ExitCode;

fn main() -> ExitCode {
    let scenarios = krablet_e2e::scenarios! {
        on krablet_e2e::Stage;
        shared:
            life::runs_and_is_removed,
            life::change_replaces_the_pod,
            life::comes_back_right_after_removal,
            life::broken_edit_keeps_the_pod,
            life::second_manifest_of_a_name_is_dropped,
            life::leaves_the_known_traces,
            life::tables_show_it,
            life::containers_get_what_their_spec_says,
            restarts::always_restarts_after_success,
            restarts::on_failure_restarts_until_success,
            restarts::never_leaves_it_ended,
            restarts::rules_choose_the_exit_codes,
            restarts::one_exit_restarts_all_containers,
            restarts::only_the_ended_container_is_restarted,
            restarts::active_deadline_ends_the_pod,
            restarts::stubborn_container_is_killed_at_the_end_of_its_grace,
            restarts::termination_messages,
            restarts::missing_image_is_told,
            restarts::missing_command_is_told,
            order::init_containers_run_one_after_another,
            order::failing_init_container,
            order::sidecars_frame_the_pod,
            order::sidecars_do_not_keep_a_finished_pod,
            order::sidecar_is_restarted,
            order::post_start_runs_before_the_next_container,
            order::failed_post_start_kills_the_container,
            order::pre_stop_runs_first,
            order::bad_pre_stop_does_not_hold_the_pod,
            probes::readiness_by_exec,
            probes::readiness_by_http,
            probes::readiness_by_grpc,
            probes::readiness_by_tcp,
            probes::liveness_restarts_the_container,
            probes::liveness_has_its_own_grace,
            probes::startup_gates_the_others,
            probes::failed_startup_restarts_the_container,
            volumes::empty_dirs_are_shared_and_removed,
            volumes::memory_volume_is_limited,
            volumes::empty_dir_outlives_a_restart,
            volumes::host_paths_of_every_type,
            volumes::wrong_host_path_is_told_and_retried,
            volumes::mounts_are_read_only_and_partial_when_asked,
            node::manifests_of_every_form,
            node::ports_and_network_of_the_node,
            node::out_of_memory_is_told,
            node::growing_logs_are_rotated,
            node::metrics_are_served;
        alone:
            objects::from_a_directory,
            object_volumes::follow_a_directory,
            crashes::killed_at_ten_moments_of_a_stop,
            crashes::killed_at_ten_moments_of_a_start,
            crashes::changes_across_a_crash_do_not_overlap,
            crashes::what_is_done_stays_done,
            restarts::crash_loop_backs_off_in_known_words,
            crowds::a_hundred_and_ten_pods,
            outages::containerd_is_away_under_thirty_pods,
            agents::single_file_and_url_sources,
            agents::run_once_tells_by_its_exit_code,
            agents::second_agent_on_a_root_directory_refuses,
            agents::restart_of_the_agent_is_not_seen_by_the_pods,
            takeover::running_static_pods_are_adopted,
            takeover::unwanted_pods_are_ended,
            outages::event_stream_is_cut,
            outages::containerd_is_killed_and_back,
            outages::runtime_without_events,
            crowds::two_hundred_broken_manifests;
        bare:
            agents::works_under_the_name_kubelet,
            agents::stopped_while_it_waits_for_the_runtime;
    };
    krablet_e2e::harness::main(scenarios)
}
