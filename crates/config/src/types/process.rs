//! The agent as a process: its gates, limits, logs and traces.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::decode::{Decoder, Field, section};
use crate::duration::Duration;
use crate::quantity::Quantity;

section! {
    /// The agent's own process.
    pub struct Process {
        /// Feature gates set to another value than their default.
        feature_gates: BTreeMap<String, bool> = "featureGates";
        /// Most files the agent may have open. Without the right to raise the limit, as many as it may.
        max_open_files: i64 = "maxOpenFiles" empty(1_000_000);
        /// Refuse to start instead of changing kernel settings that are not as needed: vm.overcommit_memory 1,
        /// vm.panic_on_oom 0, kernel.panic 10, kernel.panic_on_oops 1, kernel.keys.root_maxkeys 1000000,
        /// kernel.keys.root_maxbytes 25000000.
        protect_kernel_defaults: bool = "protectKernelDefaults";
        /// The agent's own log.
        logging: Logging = "logging";
        /// Traces sent to an OpenTelemetry collector.
        tracing: Option<Tracing> = "tracing";
    }
}

section! {
    /// Form and detail of the log.
    pub struct Logging {
        /// text or json.
        format: String = "format" empty("text".to_owned());
        /// Longest time log lines stay buffered; a number counts nanoseconds.
        flush_frequency: FlushFrequency = "flushFrequency" empty(FlushFrequency::text(Duration::from_secs(5)));
        /// Detail; 0 is the least.
        verbosity: u32 = "verbosity" always;
        /// Detail by source file.
        vmodule: Vec<VModule> = "vmodule";
        /// Options of each form; needs the gate LoggingAlphaOptions.
        options: FormatOptions = "options";
    }
}

section! {
    /// Detail of the files a pattern matches.
    pub struct VModule {
        /// File name without directory and extension, or a pattern for it.
        file_pattern: String = "filePattern" always;
        /// Detail there.
        verbosity: u32 = "verbosity" always;
    }
}

section! {
    /// Options by form.
    pub struct FormatOptions {
        /// Options of the text form.
        text: OutputRouting = "text";
        /// Options of the JSON form.
        json: OutputRouting = "json";
    }
}

section! {
    /// Streams of the log.
    pub struct OutputRouting {
        /// Errors to standard error, the rest to standard output.
        split_stream: bool = "splitStream";
        /// Buffer of the standard output stream.
        info_buffer_size: Quantity = "infoBufferSize";
    }
}

section! {
    /// An OpenTelemetry collector.
    pub struct Tracing {
        /// Where it listens for OTLP over gRPC; localhost:4317 when not set.
        endpoint: Option<String> = "endpoint";
        /// Traces started per million requests, 0 to 1000000.
        sampling_rate_per_million: Option<i32> = "samplingRatePerMillion";
    }
}

/// A flush interval: a duration text, or for old files a number of nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlushFrequency {
    /// The interval.
    pub interval: Duration,
    /// Whether it was written as a text, and is written back as one.
    pub as_text: bool,
}

impl FlushFrequency {
    pub(crate) const fn text(interval: Duration) -> Self {
        Self {
            interval,
            as_text: true,
        }
    }
}

impl Field for FlushFrequency {
    fn kind() -> String {
        Duration::kind()
    }

    fn decode(value: &Value, cx: &mut Decoder) -> Option<Self> {
        if value.is_number() {
            let nanos = i64::decode(value, cx)?;
            return Some(Self {
                interval: Duration::from_nanos(nanos),
                as_text: false,
            });
        }
        Duration::decode(value, cx).map(Self::text)
    }

    fn encode(&self) -> Value {
        if self.as_text {
            self.interval.encode()
        } else {
            Value::from(self.interval.nanos())
        }
    }

    fn is_zero(&self) -> bool {
        self.interval.is_zero()
    }

    fn omitted(&self) -> bool {
        false
    }
}
