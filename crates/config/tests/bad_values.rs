//! Values of the right type that do not hold.

mod common;

use common::file_message;

#[test]
fn values_that_do_not_hold() {
    let cases: &[(&str, &str)] = &[
        (
            "port: 65536\n",
            "/k.yaml:3: port: 65536 must be between 1 and 65535",
        ),
        (
            "readOnlyPort: -1\n",
            "/k.yaml:3: readOnlyPort: -1 must be between 0 and 65535",
        ),
        (
            "healthzPort: 70000\n",
            "/k.yaml:3: healthzPort: 70000 must be between 0 and 65535",
        ),
        (
            "nodeLeaseDurationSeconds: -1\n",
            "/k.yaml:3: nodeLeaseDurationSeconds: -1 must be greater than 0",
        ),
        (
            "systemCgroups: /s\n",
            "/k.yaml:3: systemCgroups: needs cgroupRoot",
        ),
        (
            "eventBurst: -1\n",
            "/k.yaml:3: eventBurst: -1 must not be negative",
        ),
        (
            "eventRecordQPS: -1\n",
            "/k.yaml:3: eventRecordQPS: -1 must not be negative",
        ),
        (
            "cpuCFSQuotaPeriod: 2s\n",
            "/k.yaml:3: cpuCFSQuotaPeriod: 2s must be between 1ms and 1s",
        ),
        (
            "cpuCFSQuotaPeriod: 1us\n",
            "/k.yaml:3: cpuCFSQuotaPeriod: 1\u{b5}s must be between 1ms and 1s",
        ),
        (
            "featureGates: {CustomCPUCFSQuotaPeriod: false}\ncpuCFSQuotaPeriod: 5ms\n",
            "/k.yaml:4: cpuCFSQuotaPeriod: 5ms needs the feature gate CustomCPUCFSQuotaPeriod",
        ),
        (
            "imageGCHighThresholdPercent: 101\n",
            "/k.yaml:3: imageGCHighThresholdPercent: 101 must be between 0 and 100",
        ),
        (
            "imageGCLowThresholdPercent: 85\n",
            "/k.yaml:3: imageGCLowThresholdPercent: 85 must be less than imageGCHighThresholdPercent, which is 85",
        ),
        (
            "imageMinimumGCAge: -1s\n",
            "/k.yaml:3: imageMinimumGCAge: -1s must not be negative",
        ),
        (
            "imageMaximumGCAge: -1s\n",
            "/k.yaml:3: imageMaximumGCAge: -1s must not be negative",
        ),
        (
            "imageMaximumGCAge: 1m\n",
            "/k.yaml:3: imageMaximumGCAge: 1m0s must be greater than imageMinimumGCAge, which is 2m0s",
        ),
        (
            "iptablesDropBit: 32\n",
            "/k.yaml:3: iptablesDropBit: 32 must be between 0 and 31",
        ),
        (
            "iptablesMasqueradeBit: -1\n",
            "/k.yaml:3: iptablesMasqueradeBit: -1 must be between 0 and 31",
        ),
        (
            "kubeAPIBurst: -1\n",
            "/k.yaml:3: kubeAPIBurst: -1 must not be negative",
        ),
        (
            "kubeAPIQPS: -1\n",
            "/k.yaml:3: kubeAPIQPS: -1 must not be negative",
        ),
        (
            "nodeStatusMaxImages: -2\n",
            "/k.yaml:3: nodeStatusMaxImages: -2 must be -1 or greater",
        ),
        (
            "maxOpenFiles: -1\n",
            "/k.yaml:3: maxOpenFiles: -1 must not be negative",
        ),
        (
            "maxPods: -1\n",
            "/k.yaml:3: maxPods: -1 must not be negative",
        ),
        (
            "oomScoreAdj: 1001\n",
            "/k.yaml:3: oomScoreAdj: 1001 must be between -1000 and 1000",
        ),
        (
            "podsPerCore: -1\n",
            "/k.yaml:3: podsPerCore: -1 must not be negative",
        ),
        (
            "registryBurst: -1\n",
            "/k.yaml:3: registryBurst: -1 must not be negative",
        ),
        (
            "registryPullQPS: -1\n",
            "/k.yaml:3: registryPullQPS: -1 must not be negative",
        ),
        (
            "maxParallelImagePulls: 0\n",
            "/k.yaml:3: maxParallelImagePulls: 0 must be at least 1",
        ),
        (
            "serializeImagePulls: true\nmaxParallelImagePulls: 2\n",
            "/k.yaml:4: maxParallelImagePulls: 2 needs serializeImagePulls to be false",
        ),
        (
            "featureGates: {RotateKubeletServerCertificate: false}\nserverTLSBootstrap: true\n",
            "/k.yaml:4: serverTLSBootstrap: needs the feature gate RotateKubeletServerCertificate",
        ),
        (
            "registerWithTaints:\n- key: a b\n  effect: NoSchedule\n",
            "/k.yaml:4: registerWithTaints[0]: invalid taint: \"a b\": the name must be 1 to 63 letters, digits, '-', '_' and '.', and begin and end with a letter or digit",
        ),
        (
            "registerWithTaints:\n- key: a\n  effect: Never\n",
            "/k.yaml:5: registerWithTaints[0].effect: \"Never\" must be NoSchedule, PreferNoSchedule or NoExecute",
        ),
        (
            "registerWithTaints:\n- key: a\n  effect: NoExecute\n  timeAdded: \"2024-01-01T00:00:00Z\"\n",
            "/k.yaml:6: registerWithTaints[0].timeAdded: must not be set",
        ),
        (
            "topologyManagerPolicy: best\n",
            "/k.yaml:3: topologyManagerPolicy: \"best\" must be one of none, best-effort, restricted, single-numa-node",
        ),
        (
            "topologyManagerScope: node\n",
            "/k.yaml:3: topologyManagerScope: \"node\" must be one of container, pod",
        ),
        (
            "cpuManagerPolicy: dynamic\n",
            "/k.yaml:3: cpuManagerPolicy: \"dynamic\" must be one of none, static",
        ),
        (
            "memoryManagerPolicy: none\n",
            "/k.yaml:3: memoryManagerPolicy: \"none\" must be one of None, Static",
        ),
        (
            "shutdownGracePeriodCriticalPods: 10s\n",
            "/k.yaml:3: shutdownGracePeriodCriticalPods: 10s must be at most shutdownGracePeriod, which is 0s",
        ),
        (
            "shutdownGracePeriod: 1ms\n",
            "/k.yaml:3: shutdownGracePeriod: 1ms must be zero or at least 1s",
        ),
        (
            "shutdownGracePeriod: 10s\nshutdownGracePeriodByPodPriority: [{priority: 1, shutdownGracePeriodSeconds: 1}]\n",
            "/k.yaml:4: shutdownGracePeriodByPodPriority: cannot be set together with shutdownGracePeriod",
        ),
        (
            "shutdownGracePeriodByPodPriority: [{priority: 1, shutdownGracePeriodSeconds: 1}]\nfeatureGates: {GracefulNodeShutdownBasedOnPodPriority: false}\n",
            "/k.yaml:3: shutdownGracePeriodByPodPriority: needs the feature gate GracefulNodeShutdownBasedOnPodPriority",
        ),
        (
            "memorySwap: {swapBehavior: UnlimitedSwap}\n",
            "/k.yaml:3: memorySwap.swapBehavior: \"UnlimitedSwap\" must be empty, LimitedSwap or NoSwap",
        ),
        (
            "crashLoopBackOff: {maxContainerRestartPeriod: 301s}\n",
            "/k.yaml:3: crashLoopBackOff.maxContainerRestartPeriod: 5m1s must be between 1s and 300s",
        ),
        (
            "crashLoopBackOff: {maxContainerRestartPeriod: 0s}\n",
            "/k.yaml:3: crashLoopBackOff.maxContainerRestartPeriod: 0s must be between 1s and 300s",
        ),
        (
            "featureGates: {KubeletCrashLoopBackOffMax: false}\ncrashLoopBackOff: {maxContainerRestartPeriod: 10s}\n",
            "/k.yaml:4: crashLoopBackOff.maxContainerRestartPeriod: needs the feature gate KubeletCrashLoopBackOffMax",
        ),
        (
            "enforceNodeAllocatable: [pods, system-reserved]\n",
            "systemReservedCgroup: must be set while enforceNodeAllocatable holds system-reserved",
        ),
        (
            "enforceNodeAllocatable: [kube-reserved-compressible]\n",
            "kubeReservedCgroup: must be set while enforceNodeAllocatable holds kube-reserved-compressible",
        ),
        (
            "enforceNodeAllocatable: [kube-reserved, kube-reserved-compressible]\nkubeReservedCgroup: /k\n",
            "/k.yaml:3: enforceNodeAllocatable: kube-reserved and kube-reserved-compressible exclude each other",
        ),
        (
            "enforceNodeAllocatable: [pods, pods]\n",
            "/k.yaml:3: enforceNodeAllocatable: pods is listed twice",
        ),
        (
            "enforceNodeAllocatable: [none, pods]\n",
            "/k.yaml:3: enforceNodeAllocatable: none cannot stand beside other values",
        ),
        (
            "enforceNodeAllocatable: [all]\n",
            "/k.yaml:3: enforceNodeAllocatable: \"all\" must be one of none, pods, system-reserved, system-reserved-compressible, kube-reserved, kube-reserved-compressible",
        ),
        (
            "cgroupsPerQOS: false\n",
            "/k.yaml:3: cgroupsPerQOS: must be true while enforceNodeAllocatable holds pods",
        ),
        (
            "hairpinMode: veth\n",
            "/k.yaml:3: hairpinMode: \"veth\" must be one of none, hairpin-veth, promiscuous-bridge",
        ),
        (
            "imagePullCredentialsVerificationPolicy: Sometimes\n",
            "/k.yaml:3: imagePullCredentialsVerificationPolicy: \"Sometimes\" must be one of NeverVerify, NeverVerifyPreloadedImages, NeverVerifyAllowlistedImages, AlwaysVerify",
        ),
        (
            "preloadedImagesVerificationAllowlist: [a/*]\n",
            "/k.yaml:3: preloadedImagesVerificationAllowlist: needs imagePullCredentialsVerificationPolicy NeverVerifyAllowlistedImages",
        ),
        (
            "imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages\npreloadedImagesVerificationAllowlist: [\"a*\", \"b:1\", \"/*\", \" c\"]\n",
            "/k.yaml:4: preloadedImagesVerificationAllowlist[0]: \"a*\": a * is only allowed as a final /*\n\
             /k.yaml:4: preloadedImagesVerificationAllowlist[1]: \"b:1\": neither tag nor digest is allowed\n\
             /k.yaml:4: preloadedImagesVerificationAllowlist[2]: \"/*\": at least a registry is needed\n\
             /k.yaml:4: preloadedImagesVerificationAllowlist[3]: \" c\": spaces around the name are not allowed",
        ),
        (
            "reservedSystemCPUs: 0-1\nkubeReservedCgroup: /k\n",
            "/k.yaml:3: reservedSystemCPUs: cannot be used together with systemReservedCgroup or kubeReservedCgroup",
        ),
        (
            "reservedSystemCPUs: 3-1\n",
            "/k.yaml:3: reservedSystemCPUs: \"3-1\" is not a CPU list such as 0-1,4",
        ),
        (
            "reservedSystemCPUs: all\n",
            "/k.yaml:3: reservedSystemCPUs: \"all\" is not a CPU list such as 0-1,4",
        ),
        (
            "reservedMemory:\n- numaNode: 0\n  limits: {cpu: 1}\n",
            "/k.yaml:5: reservedMemory[0].limits.cpu: the type \"cpu\" for NUMA node 0 is not supported, want memory or hugepages-<size>",
        ),
        (
            "reservedMemory:\n- numaNode: 0\n  limits: {memory: \"0\"}\n",
            "/k.yaml:5: reservedMemory[0].limits.memory: the amount for NUMA node 0 must not be zero",
        ),
        (
            "reservedMemory:\n- {numaNode: 0, limits: {memory: 1Gi}}\n- {numaNode: 0, limits: {memory: 1Gi}}\n",
            "/k.yaml:5: reservedMemory[1].limits.memory: NUMA node 0 has this type twice",
        ),
        (
            "kubeReserved: {gpu: \"1\"}\n",
            "/k.yaml:3: kubeReserved.gpu: \"gpu\" cannot be reserved, want cpu, memory, ephemeral-storage or pid",
        ),
        (
            "systemReserved: {memory: -1Gi}\n",
            "/k.yaml:3: systemReserved.memory: -1Gi must not be negative",
        ),
        (
            "systemReserved: {memory: 1GB}\n",
            "/k.yaml:3: systemReserved.memory: \"1GB\" is not a quantity such as 500m, 2Gi or 1e3",
        ),
        (
            "qosReserved: {cpu: 50%}\n",
            "/k.yaml:3: qosReserved.cpu: \"cpu\" cannot be reserved, only memory can",
        ),
        (
            "qosReserved: {memory: half}\n",
            "/k.yaml:3: qosReserved.memory: \"half\" must be a percentage from 0% to 100%",
        ),
        (
            "showHiddenMetricsForVersion: \"1.34\"\n",
            "/k.yaml:3: showHiddenMetricsForVersion: \"1.34\" must be left out or be \"1.35\", the previous minor version",
        ),
        (
            "logging: {format: xml}\n",
            "/k.yaml:3: logging.format: \"xml\" must be one of text, json",
        ),
        (
            "logging: {flushFrequency: -1s}\n",
            "/k.yaml:3: logging.flushFrequency: -1s must be greater than zero",
        ),
        (
            "logging:\n  format: json\n  vmodule: [{filePattern: a, verbosity: 1}]\n",
            "/k.yaml:5: logging.vmodule: is only supported with the text format",
        ),
        (
            "logging:\n  vmodule: [{filePattern: \"\", verbosity: 1}, {filePattern: \"a=b\", verbosity: 1}]\n",
            "/k.yaml:4: logging.vmodule[0]: the file pattern must not be empty\n\
             /k.yaml:4: logging.vmodule[1]: the file pattern \"a=b\" must not hold an equals sign or a comma",
        ),
        (
            "logging: {options: {json: {splitStream: true}}}\n",
            "/k.yaml:3: logging.options.json.splitStream: needs the feature gate LoggingAlphaOptions",
        ),
        (
            "logging: {verbosity: 2147483648}\n",
            "/k.yaml:3: logging.verbosity: 2147483648 must be at most 2147483647",
        ),
        (
            "tracing: {samplingRatePerMillion: -1}\n",
            "/k.yaml:3: tracing.samplingRatePerMillion: -1 must be between 0 and 1000000",
        ),
        (
            "tracing: {endpoint: \"http://localhost:4317\"}\n",
            "/k.yaml:3: tracing.endpoint: unsupported scheme \"http\", want none, dns, unix or unix-abstract",
        ),
        (
            "memoryThrottlingFactor: 0\n",
            "/k.yaml:3: memoryThrottlingFactor: 0 must be greater than 0 and at most 1",
        ),
        (
            "memoryThrottlingFactor: 1.1\n",
            "/k.yaml:3: memoryThrottlingFactor: 1.1 must be greater than 0 and at most 1",
        ),
        (
            "memoryReservationPolicy: TieredReservation\n",
            "/k.yaml:3: memoryReservationPolicy: TieredReservation needs the feature gate MemoryQoS",
        ),
        (
            "memoryReservationPolicy: Full\n",
            "/k.yaml:3: memoryReservationPolicy: \"Full\" must be one of None, TieredReservation",
        ),
        (
            "enableSystemLogQuery: true\nenableSystemLogHandler: false\n",
            "/k.yaml:3: enableSystemLogQuery: needs enableSystemLogHandler",
        ),
        (
            "containerLogMaxWorkers: 0\n",
            "/k.yaml:3: containerLogMaxWorkers: 0 must be at least 1",
        ),
        (
            "containerLogMonitorInterval: 2s\n",
            "/k.yaml:3: containerLogMonitorInterval: 2s must be at least 3s",
        ),
        (
            "containerLogMaxFiles: 1\n",
            "/k.yaml:3: containerLogMaxFiles: 1 must be greater than 1",
        ),
        (
            "containerLogMaxSize: big\n",
            "/k.yaml:3: containerLogMaxSize: \"big\" is not a quantity such as 500m, 2Gi or 1e3",
        ),
        (
            "podLogsDir: /var/log/../pods\n",
            "/k.yaml:3: podLogsDir: \"/var/log/../pods\" must be a normalised path",
        ),
        (
            "podLogsDir: /var/log/pöds\n",
            "/k.yaml:3: podLogsDir: \"/var/log/pöds\" must hold ASCII characters only",
        ),
        (
            "authorization: {mode: RBAC}\n",
            "/k.yaml:3: authorization.mode: \"RBAC\" must be one of AlwaysAllow, Webhook",
        ),
        (
            "tlsMinVersion: TLS1.2\n",
            "/k.yaml:3: tlsMinVersion: \"TLS1.2\" must be one of VersionTLS10, VersionTLS11, VersionTLS12, VersionTLS13",
        ),
        (
            "tlsCipherSuites: [AES]\n",
            "/k.yaml:3: tlsCipherSuites[0]: \"AES\" is not a known cipher suite",
        ),
        (
            "tlsCurvePreferences: [29, 0, 29]\n",
            "/k.yaml:3: tlsCurvePreferences[1]: 0 must be between 1 and 65535\n/k.yaml:3: tlsCurvePreferences[2]: 29 is listed twice",
        ),
        (
            "configMapAndSecretChangeDetectionStrategy: Poll\n",
            "/k.yaml:3: configMapAndSecretChangeDetectionStrategy: \"Poll\" must be one of Get, Cache, Watch",
        ),
        (
            "evictionHard: {memory.available: 0}\n",
            "/k.yaml:3: evictionHard[memory.available]: want a string, found the number 0",
        ),
        (
            "evictionHard: {memory.available: \"0\"}\n",
            "/k.yaml:3: evictionHard[memory.available]: 0 must be positive",
        ),
        (
            "evictionHard: {memory.available: 101%}\n",
            "/k.yaml:3: evictionHard[memory.available]: 101% must be between 0% and 100%",
        ),
        (
            "evictionHard: {memory.available: x%}\n",
            "/k.yaml:3: evictionHard[memory.available]: \"x%\" is not a percentage",
        ),
        (
            "evictionSoft: {memory.available: 1Gi}\n",
            "/k.yaml:3: evictionSoft[memory.available]: needs a grace period in evictionSoftGracePeriod",
        ),
        (
            "evictionSoftGracePeriod: {memory.available: soon}\n",
            "/k.yaml:3: evictionSoftGracePeriod[memory.available]: invalid duration \"soon\"",
        ),
        (
            "evictionMinimumReclaim: {memory.available: 0%}\n",
            "/k.yaml:3: evictionMinimumReclaim[memory.available]: 0% must be positive",
        ),
        (
            "userNamespaces: {idsPerPod: 65537}\n",
            "/k.yaml:3: userNamespaces.idsPerPod: 65537 must be a multiple of 65536",
        ),
        (
            "featureGates: {Foo: true}\n",
            "/k.yaml:3: featureGates.Foo: unknown feature gate",
        ),
        (
            "featureGates: {ImageVolume: false}\n",
            "/k.yaml:3: featureGates.ImageVolume: cannot be set to false: the gate is locked to true",
        ),
        (
            "featureGates: {ExtendWebSocketsToKubelet: true, NodeDeclaredFeatures: false, InPlacePodLevelResourcesVerticalScaling: false, InPlacePodVerticalScalingInitContainers: false, RestartAllContainersOnContainerExits: false}\n",
            "/k.yaml:3: featureGates.ExtendWebSocketsToKubelet: is on but needs NodeDeclaredFeatures, which is off",
        ),
    ];
    for (fields, expected) in cases {
        assert_eq!(file_message(fields), *expected, "{fields}");
    }
}

#[test]
fn hosts_the_configuration_does_not_fit() {
    use krablet_config::{HostFacts, validate_host};
    let config = common::from_file("singleProcessOOMKill: false\n").config;
    let lines = |cgroup_v2| {
        validate_host(&config, HostFacts { cgroup_v2 })
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
    };
    assert_eq!(lines(true), Vec::<String>::new());
    assert_eq!(
        lines(false),
        [
            "failCgroupV1: this host uses cgroup v1; set it to false to run here nevertheless",
            "singleProcessOOMKill: must not be false on cgroup v1",
        ]
    );
}
