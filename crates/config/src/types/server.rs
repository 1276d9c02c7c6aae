//! The agent's own HTTP servers.

use crate::decode::section;
use crate::duration::Duration;

section! {
    /// Addresses, ports and the handlers behind them.
    pub struct Server {
        /// Serve the HTTPS API at all.
        enable_server: bool = "enableServer" absent(true);
        /// Address of the HTTPS API and the read-only port.
        address: String = "address" empty("0.0.0.0".to_owned());
        /// Port of the HTTPS API.
        port: i32 = "port" empty(10250);
        /// Port of the read-only API without authentication; 0 turns it off.
        read_only_port: i32 = "readOnlyPort";
        /// Close an exec, attach or port-forward stream after this long without traffic.
        streaming_connection_idle_timeout: Duration = "streamingConnectionIdleTimeout" empty(Duration::from_hours(4));
        /// Serve logs, exec, attach, port-forward, run and the other debugging paths.
        enable_debugging_handlers: bool = "enableDebuggingHandlers" absent(true);
        /// Collect lock-contention profiles, when profiling is served.
        enable_contention_profiling: bool = "enableContentionProfiling";
        /// Serve /debug/pprof.
        enable_profiling_handler: bool = "enableProfilingHandler" absent(true);
        /// Serve /debug/flags/v.
        enable_debug_flags_handler: bool = "enableDebugFlagsHandler" absent(true);
        /// Serve the host's logs under /logs/.
        enable_system_log_handler: bool = "enableSystemLogHandler" absent(true);
        /// Let /logs/ answer queries over services' logs; needs enableSystemLogHandler.
        enable_system_log_query: bool = "enableSystemLogQuery" absent(false);
        /// Port of the plain /healthz endpoint; 0 turns it off.
        healthz_port: i32 = "healthzPort" absent(10248);
        /// Address of the plain /healthz endpoint.
        healthz_bind_address: String = "healthzBindAddress" empty("127.0.0.1".to_owned());
        /// Show metrics hidden since this version; only the previous minor version is accepted.
        show_hidden_metrics_for_version: String = "showHiddenMetricsForVersion";
    }
}
