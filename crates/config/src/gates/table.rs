//! Every feature gate a kubelet of version 1.36 knows, with its stage, default and lock, and which gates each needs.
//!
//! An unknown gate in a file is a startup error, so gates of other components, which the same file may name, are
//! here too. Features of a node that krablet does not have are marked as absent: their gates can be set as upstream's
//! can, for files that do so are good files, but they are never in effect.

use super::{Spec, Stage};

macro_rules! gates {
    ($($gate:ident $stage:ident $default:ident $(, $mark:ident)* $(needs [$($dependency:ident),+])?;)*) => {
        /// A feature gate, by its upstream name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Gate { $($gate),* }

        /// The table, in the order of [`Gate`].
        pub(super) const SPECS: &[Spec] = &[
            $(Spec {
                gate: Gate::$gate,
                name: stringify!($gate),
                stage: Stage::$stage,
                default: gates!(@bool $default),
                locked: false $(|| gates!(@locked $mark))*,
                absent: false $(|| gates!(@absent $mark))*,
                needs: &[$($(Gate::$dependency),+)?],
            },)*
        ];
    };
    (@bool on) => { true };
    (@bool off) => { false };
    (@locked locked) => { true };
    (@locked absent) => { false };
    (@absent absent) => { true };
    (@absent locked) => { false };
}

gates! {
    APIResponseCompression Beta on;
    APIServerIdentity Beta on;
    APIServerTracing Ga on, locked;
    APIServingWithRoutine Alpha off;
    AggregatedDiscoveryRemoveBetaType Deprecated on, locked;
    AllAlpha Alpha off;
    AllBeta Beta off;
    AllowDNSOnlyNodeCSR Deprecated off;
    AllowInsecureKubeletCertificateSigningRequests Deprecated off;
    AllowOverwriteTerminationGracePeriodSeconds Deprecated off, locked;
    AllowParsingUserUIDFromCertAuth Beta on;
    AllowServiceExternalIPs Ga on;
    AllowUnsafeMalformedObjectDeletion Alpha off;
    AnonymousAuthConfigurableEndpoints Ga on, locked;
    AnyVolumeDataSource Ga on, locked;
    AtomicFIFO Beta on;
    AuthorizeNodeWithSelectors Ga on, locked needs [AuthorizeWithSelectors];
    AuthorizePodWebsocketUpgradeCreatePermission Beta on;
    AuthorizeWithSelectors Ga on, locked;
    BtreeWatchCache Ga on, locked;
    CBORServingAndStorage Alpha off;
    CPUManagerPolicyAlphaOptions Alpha off, absent;
    CPUManagerPolicyBetaOptions Beta on, absent;
    CPUManagerPolicyOptions Ga on, locked, absent;
    CRDObservedGenerationTracking Beta on;
    CRDValidationRatcheting Ga on, locked;
    CRIListStreaming Alpha off;
    CSIServiceAccountTokenSecrets Ga on, locked, absent;
    CSIVolumeHealth Alpha off, absent;
    ChangeContainerStatusOnKubeletRestart Deprecated off;
    ClearingNominatedNodeNameAfterBinding Beta on;
    ClientsAllowCARotation Beta on;
    ClientsAllowCBOR Alpha off;
    ClientsAllowTLSCacheGC Beta on;
    ClientsPreferCBOR Alpha off;
    CloudControllerManagerWatchBasedRoutesReconciliation Alpha off;
    CloudControllerManagerWebhook Alpha off;
    ClusterTrustBundle Beta off;
    ClusterTrustBundleProjection Beta off needs [ClusterTrustBundle];
    ComponentFlagz Beta on;
    ComponentStatusz Beta on;
    ConcurrentWatchObjectDecode Beta off;
    ConsistentListFromCache Ga on, locked;
    ConstrainedImpersonation Beta on;
    ContainerCheckpoint Beta on;
    ContainerRestartRules Beta on;
    ContainerStopSignals Alpha off;
    ContextualLogging Beta on;
    ControllerManagerReleaseLeaderElectionLockOnExit Alpha off;
    CoordinatedLeaderElection Beta off;
    CrossNamespaceVolumeDataSource Alpha off;
    CustomCPUCFSQuotaPeriod Ga on;
    CustomResourceFieldSelectors Ga on, locked;
    DRAAdminAccess Ga on, locked needs [DynamicResourceAllocation];
    DRAConsumableCapacity Beta on needs [DynamicResourceAllocation];
    DRADeviceBindingConditions Beta on needs [DRAResourceClaimDeviceStatus, DynamicResourceAllocation];
    DRADeviceTaintRules Beta off needs [DRADeviceTaints];
    DRADeviceTaints Beta on needs [DynamicResourceAllocation];
    DRAExtendedResource Beta on needs [DynamicResourceAllocation];
    DRAListTypeAttributes Alpha off needs [DynamicResourceAllocation];
    DRANodeAllocatableResources Alpha off needs [DynamicResourceAllocation];
    DRAPartitionableDevices Beta on needs [DynamicResourceAllocation];
    DRAPrioritizedList Ga on needs [DynamicResourceAllocation];
    DRAResourceClaimDeviceStatus Beta on;
    DRAResourceClaimGranularStatusAuthorization Beta on needs [DRAResourceClaimDeviceStatus, DynamicResourceAllocation];
    DRAResourcePoolStatus Alpha off needs [DynamicResourceAllocation];
    DRASchedulerFilterTimeout Beta on needs [DynamicResourceAllocation];
    DRAWorkloadResourceClaims Alpha off needs [DynamicResourceAllocation, GenericWorkload];
    DeclarativeValidation Ga on, locked;
    DeclarativeValidationBeta Beta on needs [DeclarativeValidation];
    DeclarativeValidationTakeover Deprecated off needs [DeclarativeValidation];
    DeploymentReplicaSetTerminatingReplicas Beta on;
    DetectCacheInconsistency Beta on;
    DisableAllocatorDualWrite Ga on, locked needs [MultiCIDRServiceAllocator];
    DisableCPUQuotaWithExclusiveCPUs Deprecated on;
    DisableNodeKubeProxyVersion Deprecated on, locked;
    DynamicResourceAllocation Ga on, locked, absent;
    EnvFiles Beta on;
    EventedPLEG Alpha off;
    ExecProbeTimeout Ga on, locked;
    ExtendWebSocketsToKubelet Beta on, absent needs [NodeDeclaredFeatures];
    ExternalServiceAccountTokenSigner Ga on, locked;
    GangScheduling Alpha off needs [GenericWorkload];
    GenericWorkload Alpha off;
    GitRepoVolumeDriver Deprecated off, locked;
    GracefulNodeShutdown Beta on, absent;
    GracefulNodeShutdownBasedOnPodPriority Beta on, absent needs [GracefulNodeShutdown];
    HPAConfigurableTolerance Beta on;
    HPAScaleToZero Alpha off;
    HostnameOverride Beta on;
    ImageMaximumGCAge Ga on, locked;
    ImageVolume Ga on, locked;
    ImageVolumeWithDigest Alpha off needs [ImageVolume];
    InOrderInformers Ga on, locked;
    InOrderInformersBatchProcess Beta on;
    InPlacePodLevelResourcesVerticalScaling Beta on needs [InPlacePodVerticalScaling, NodeDeclaredFeatures, PodLevelResources];
    InPlacePodVerticalScaling Ga on, locked;
    InPlacePodVerticalScalingExclusiveCPUs Alpha off needs [InPlacePodVerticalScaling];
    InPlacePodVerticalScalingExclusiveMemory Alpha off needs [InPlacePodVerticalScaling];
    InPlacePodVerticalScalingInitContainers Beta on needs [InPlacePodVerticalScaling, NodeDeclaredFeatures];
    InformerResourceVersion Ga on;
    JobBackoffLimitPerIndex Ga on, locked;
    JobManagedBy Ga on, locked;
    JobPodReplacementPolicy Ga on, locked;
    JobSuccessPolicy Ga on, locked;
    KMSv1 Deprecated off;
    KubeletCgroupDriverFromCRI Ga on, locked;
    KubeletCrashLoopBackOffMax Beta on;
    KubeletEnsureSecretPulledImages Beta on;
    KubeletFineGrainedAuthz Ga on, locked;
    KubeletInUserNamespace Alpha off;
    KubeletPSI Ga on, locked;
    KubeletPodResourcesDynamicResources Ga on, locked, absent;
    KubeletPodResourcesGet Ga on, locked;
    KubeletPodResourcesListUseActivePods Deprecated on;
    KubeletRegistrationGetOnExistsOnly Deprecated off;
    KubeletSeparateDiskGC Beta on;
    KubeletServiceAccountTokenForCredentialProviders Beta on;
    KubeletTracing Ga on, locked, absent;
    ListFromCacheSnapshot Beta on;
    LocalStorageCapacityIsolationFSQuotaMonitoring Beta off;
    LogarithmicScaleDown Ga on, locked;
    LoggingAlphaOptions Alpha off;
    LoggingBetaOptions Beta on;
    ManifestBasedAdmissionControlConfig Alpha off;
    MatchLabelKeysInPodAffinity Ga on, locked;
    MatchLabelKeysInPodTopologySpread Beta on;
    MatchLabelKeysInPodTopologySpreadSelectorMerge Beta on needs [MatchLabelKeysInPodTopologySpread];
    MaxUnavailableStatefulSet Beta off;
    MemoryQoS Alpha off;
    MultiCIDRServiceAllocator Ga on, locked;
    MutableCSINodeAllocatableCount Ga on, locked, absent;
    MutablePVNodeAffinity Alpha off;
    MutablePodResourcesForSuspendedJobs Beta on;
    MutableSchedulingDirectivesForSuspendedJobs Beta on;
    MutatingAdmissionPolicy Ga on;
    NFTablesProxyMode Ga on, locked;
    NativeHistograms Alpha off;
    NodeDeclaredFeatures Beta on;
    NodeInclusionPolicyInPodTopologySpread Ga on, locked;
    NodeLogQuery Ga on, locked;
    NodeSwap Ga on, locked;
    NominatedNodeNameForExpectation Beta on;
    OpenAPIEnums Beta on;
    OpportunisticBatching Beta on;
    OrderedNamespaceDeletion Ga on, locked;
    PLEGOnDemandRelist Beta on;
    PersistentVolumeClaimUnusedSinceTime Alpha off;
    PodAndContainerStatsFromCRI Alpha off;
    PodCertificateRequest Beta off needs [AuthorizeNodeWithSelectors];
    PodDeletionCost Beta on;
    PodLevelResourceManagers Alpha off, absent needs [PodLevelResources];
    PodLevelResources Beta on;
    PodLifecycleSleepAction Ga on, locked;
    PodLifecycleSleepActionAllowZero Ga on, locked needs [PodLifecycleSleepAction];
    PodLogsQuerySplitStreams Alpha off;
    PodObservedGenerationTracking Ga on, locked;
    PodReadyToStartContainersCondition Beta on;
    PodSchedulingReadiness Ga on, locked;
    PodTopologyLabelsAdmission Beta on;
    PodsAPI Alpha off, absent;
    PortForwardWebsockets Beta on;
    PreferSameTrafficDistribution Ga on, locked;
    PreventStaticPodAPIReferences Beta on;
    ProcMountType Ga on, locked needs [UserNamespacesSupport];
    QOSReserved Alpha off;
    RecoverVolumeExpansionFailure Ga on, locked;
    RecursiveReadOnlyMounts Ga on, locked;
    ReduceDefaultCrashLoopBackOffDecay Alpha off;
    RelaxedDNSSearchValidation Ga on, locked;
    RelaxedEnvironmentVariableValidation Ga on, locked;
    RelaxedServiceNameValidation Beta on;
    ReloadKubeletClientCAFile Beta on;
    ReloadKubeletServerCertificateFile Beta on;
    RemoteRequestHeaderUID Beta on;
    ResilientWatchCacheInitialization Ga on, locked;
    ResourceHealthStatus Beta on, absent needs [DynamicResourceAllocation];
    ResourceHealthStatusMessage Beta on, absent needs [ResourceHealthStatus];
    RestartAllContainersOnContainerExits Beta on needs [ContainerRestartRules, NodeDeclaredFeatures];
    RetryGenerateName Ga on, locked;
    RotateKubeletServerCertificate Beta on;
    RuntimeClassInImageCriApi Alpha off;
    SELinuxChangePolicy Ga on, locked;
    SELinuxMount Beta off, absent;
    SELinuxMountReadWriteOncePod Ga on, locked, absent;
    SchedulerAsyncAPICalls Beta off;
    SchedulerAsyncPreemption Beta on;
    SchedulerPopFromBackoffQ Beta on;
    SchedulerQueueingHints Ga on, locked;
    SeparateCacheWatchRPC Deprecated off, locked;
    SeparateTaintEvictionController Ga on, locked;
    ServiceAccountNodeAudienceRestriction Beta on;
    ServiceAccountTokenJTI Ga on, locked;
    ServiceAccountTokenNodeBinding Ga on, locked needs [ServiceAccountTokenNodeBindingValidation];
    ServiceAccountTokenNodeBindingValidation Ga on, locked;
    ServiceAccountTokenPodNodeInfo Ga on, locked;
    ServiceCIDRStatusFieldWiping Deprecated on;
    ShardedListAndWatch Alpha off;
    SidecarContainers Ga on, locked;
    SizeBasedListCostEstimate Beta on;
    StaleControllerConsistencyDaemonSet Beta on needs [AtomicFIFO];
    StaleControllerConsistencyJob Beta on needs [AtomicFIFO];
    StaleControllerConsistencyReplicaSet Beta on needs [AtomicFIFO];
    StaleControllerConsistencyStatefulSet Beta on needs [AtomicFIFO];
    StatefulSetSemanticRevisionComparison Beta on;
    StorageCapacityScoring Alpha off;
    StorageNamespaceIndex Deprecated on;
    StorageVersionAPI Alpha off needs [APIServerIdentity];
    StorageVersionHash Beta on;
    StorageVersionMigrator Beta off;
    StreamingCollectionEncodingToJSON Ga on, locked;
    StreamingCollectionEncodingToProtobuf Ga on, locked;
    StrictIPCIDRValidation Beta on;
    StructuredAuthenticationConfiguration Ga on, locked;
    StructuredAuthenticationConfigurationEgressSelector Beta on needs [StructuredAuthenticationConfiguration];
    StructuredAuthenticationConfigurationJWKSMetrics Beta on needs [StructuredAuthenticationConfiguration];
    SupplementalGroupsPolicy Ga on, locked;
    SystemdWatchdog Ga on, locked;
    TaintTolerationComparisonOperators Alpha off;
    TokenRequestServiceAccountUIDValidation Beta on;
    TopologyAwareWorkloadScheduling Alpha off needs [GenericWorkload];
    TopologyManagerPolicyAlphaOptions Alpha off, absent;
    TopologyManagerPolicyBetaOptions Beta on, absent;
    TopologyManagerPolicyOptions Ga on, locked, absent;
    TranslateStreamCloseWebsocketRequests Beta on;
    UnauthenticatedHTTP2DOSMitigation Beta on;
    UnknownVersionInteroperabilityProxy Beta on needs [APIServerIdentity];
    UnlockWhileProcessingFIFO Beta on;
    UserNamespacesHostNetworkSupport Alpha off needs [NodeDeclaredFeatures, UserNamespacesSupport];
    UserNamespacesSupport Ga on, locked;
    VolumeAttributesClass Ga on, locked;
    VolumeLimitScaling Alpha off;
    WatchCacheInitializationPostStartHook Beta on;
    WatchList Beta on;
    WatchListClient Beta on;
    WinDSR Ga on, locked;
    WinOverlay Ga on, locked;
    WindowsCPUAndMemoryAffinity Alpha off;
    WindowsGracefulNodeShutdown Beta on, absent needs [GracefulNodeShutdown];
    WindowsHostNetwork Deprecated off;
    WorkloadAwarePreemption Alpha off needs [GangScheduling];
    WorkloadWithJob Alpha off needs [GenericWorkload];
}
