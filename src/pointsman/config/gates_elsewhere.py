"""Feature gates of the Kubernetes version we follow that mean nothing to a service proxy.

kube-proxy accepts them because it shares the gate registry with every other component; so do we, with a warning. Their
stages and defaults matter all the same: kube-proxy refuses to start when one that is on depends on one that is off.
"""

from __future__ import annotations

ALPHA = """
    APIServerWebhookAuthenticationToken APIServingWithRoutine AtomicWriteVolumeUserFields
    CBORServingAndStorage CPUManagerPolicyAlphaOptions CRIListStreaming CSIVolumeHealth
    ClientsAllowCBOR ClientsPreferCBOR CloudControllerManagerWatchBasedRoutesReconciliation
    CloudControllerManagerWebhook CompositePodGroup ConsistentListFromCacheSkipTimeoutFallback
    ContainerStopSignals ControllerManagerReleaseLeaderElectionLockOnExit
    CrossNamespaceVolumeDataSource DRADerivedAttributes DRADeviceCompatibilityGroups
    DRAListTypeAttributes DRANodeAllocatableResources DRAOptionalNodeOperations
    DRAPartitionableDevicesType DRAResourcePoolStatus DefaultPodSysctls EmptyDirVolumeMode
    EventedPLEG EvictionRequestAPI GRPCContainerProbeTLS H2CContainerProbe ImageVolumeWithDigest
    InPlacePodVerticalScalingExclusiveCPUs InPlacePodVerticalScalingExclusiveMemory
    InPlacePodVerticalScalingMemoryBackedVolumes InPlacePodVerticalScalingSchedulerPreemption
    InterPodAffinityHostnameFastPath KubeletAllocatedPodsEndpoint MutablePVNodeAffinity
    NodeLifecycleConditions PodGroupPreemptionPolicy PodLogsQuerySplitStreams QOSReserved
    ReduceDefaultCrashLoopBackOffDecay RuntimeClassInImageCriApi SchedulerPreQueueingHints
    ShardedListAndWatch StatefulSetRecreateStrategy StorageVersionAPI
    TaintTolerationComparisonOperators TopologyAwareWorkloadScheduling
    TopologyManagerPolicyAlphaOptions UserNamespacesHostNetworkSupport VolumeBindMountOptions
    WindowsCPUAndMemoryAffinity WorkloadWithJob
"""
"""Off by default."""

BETA_ON = """
    APIResponseCompression APIServerIdentity AllowParsingUserUIDFromCertAuth
    AllowUnsafeMalformedObjectDeletion AtomicFIFO AuthorizePodWebsocketUpgradeCreatePermission
    CPUManagerPolicyBetaOptions CRDObservedGenerationTracking
    ClearingNominatedNodeNameAfterBinding ClientsAllowCARotation ClientsAllowTLSCacheGC
    ConcurrentWatchObjectDecode ConstrainedImpersonation ContainerCheckpoint ContainerRestartRules
    DRAConsumableCapacity DRADeviceBindingConditions DRAPartitionableDevices
    DRAResourceClaimGranularStatusAuthorization DRASchedulerFilterTimeout
    DeclarativeValidationBeta DeploymentReplicaSetTerminatingReplicas DetectCacheInconsistency
    EnvFiles EtcdRangeStream ExcludeAdmissionWebhookVirtualResources ExtendWebSocketsToKubelet
    GracefulNodeShutdown GracefulNodeShutdownBasedOnPodPriority HPAGeneration
    HPAOptimizedSelectorStore HPAScaleToZero HugepageAwareEviction InOrderInformersBatchProcess
    InPlacePodLevelResourcesVerticalScaling KubeletCrashLoopBackOffMax
    KubeletEnsureSecretPulledImages KubeletInUserNamespace KubeletSeparateDiskGC
    KubeletServiceAccountTokenForCredentialProviders ListFromCacheSnapshot
    ManifestBasedAdmissionControlConfig MatchLabelKeysInPodTopologySpread
    MatchLabelKeysInPodTopologySpreadSelectorMerge MaxUnavailableStatefulSet MemoryQoS
    MutablePodResourcesForSuspendedJobs MutableSchedulingDirectivesForSuspendedJobs
    NodeControllerLeaseCircuitBreaker NominatedNodeNameForExpectation OpenAPIEnums
    OpportunisticBatching PersistentVolumeClaimUnusedSinceTime PodDeletionCost PodLevelResources
    PodLevelResourcesFixDefaulting PodLevelResourcesFixKubeletQOSClass PodTopologyLabelsAdmission
    PodsAPI PortForwardWebsockets ReloadKubeletClientCAFile ReloadKubeletServerCertificateFile
    RemoteRequestHeaderUID ResourceHealthStatus ResourceHealthStatusMessage
    RestartAllContainersOnContainerExits RotateKubeletServerCertificate SchedulerAsyncPreemption
    SchedulerPopFromBackoffQ ServiceAccountNodeAudienceRestriction SizeBasedListCostEstimate
    StaleControllerConsistencyDaemonSet StaleControllerConsistencyHPA
    StaleControllerConsistencyJob StaleControllerConsistencyReplicaSet
    StaleControllerConsistencyStatefulSet StatefulSetSemanticRevisionComparison
    StorageCapacityScoring StorageVersionHash StructuredAuthenticationConfigurationEgressSelector
    StructuredAuthenticationConfigurationJWKSMetrics TokenRequestServiceAccountUIDValidation
    TopologyManagerPolicyBetaOptions TranslateStreamCloseWebsocketRequests
    UnauthenticatedHTTP2DOSMitigation UnknownVersionInteroperabilityProxy
    UnlockWhileProcessingFIFO VolumeLimitScaling WatchList WatchListCompression
    WebhookRoundTripLoadBalancing WindowsGracefulNodeShutdown
"""

BETA_OFF = """
    CoordinatedLeaderElection DRAFractionalCapacityRange DRAWorkloadResourceClaims GenericWorkload
    LocalStorageCapacityIsolationFSQuotaMonitoring PodAndContainerStatsFromCRI
    PodLevelResourceManagers SchedulerAsyncAPICalls
"""

SETTLED = """
    ClusterTrustBundle ClusterTrustBundleProjection CustomCPUCFSQuotaPeriod
    InformerResourceVersion MutatingAdmissionPolicy PodCertificateRequest SELinuxMount
    StorageVersionMigrator
"""
"""Generally available, and still to be switched."""

LOCKED_ON = """
    CPUManagerPolicyOptions CRDValidationRatcheting CSIServiceAccountTokenSecrets
    CustomResourceFieldSelectors DRAAdminAccess DRADeviceTaintRules DRADeviceTaints
    DRAExtendedResource DRAPrioritizedList DRAResourceClaimDeviceStatus DeclarativeValidation
    DisableAllocatorDualWrite DynamicResourceAllocation ExecProbeTimeout
    ExternalServiceAccountTokenSigner HPAConfigurableTolerance HostnameOverride ImageMaximumGCAge
    ImageVolume InOrderInformers InPlacePodVerticalScaling InPlacePodVerticalScalingInitContainers
    JobManagedBy KubeletCgroupDriverFromCRI KubeletFineGrainedAuthz KubeletPSI
    KubeletPodResourcesDynamicResources KubeletPodResourcesGet KubeletTracing
    MatchLabelKeysInPodAffinity MutableCSINodeAllocatableCount NodeDeclaredFeatures
    NodeInclusionPolicyInPodTopologySpread NodeLogQuery NodeSwap PLEGOnDemandRelist
    PodObservedGenerationTracking PodReadyToStartContainersCondition PodSchedulingReadiness
    ProcMountType RecoverVolumeExpansionFailure RecursiveReadOnlyMounts
    RelaxedEnvironmentVariableValidation SELinuxChangePolicy SELinuxMountReadWriteOncePod
    SeparateTaintEvictionController ServiceAccountTokenJTI ServiceAccountTokenNodeBinding
    ServiceAccountTokenNodeBindingValidation ServiceAccountTokenPodNodeInfo
    SupplementalGroupsPolicy SystemdWatchdog TopologyManagerPolicyOptions UserNamespacesSupport
    VolumeAttributesClass WatchCacheInitializationPostStartHook
"""
"""Generally available and never off again."""

DEPRECATED_ON = """
    KubeletPodResourcesListUseActivePods ServiceCIDRStatusFieldWiping StorageNamespaceIndex
"""

DEPRECATED_OFF = """
    AllowDNSOnlyNodeCSR AllowInsecureKubeletCertificateSigningRequests
    ChangeContainerStatusOnKubeletRestart KMSv1 KubeletRegistrationGetOnExistsOnly
    WindowsHostNetwork
"""

DEPRECATED_LOCKED_ON = """
    AggregatedDiscoveryRemoveBetaType DisableCPUQuotaWithExclusiveCPUs DisableNodeKubeProxyVersion
"""

DEPRECATED_LOCKED_OFF = """
    AllowOverwriteTerminationGracePeriodSeconds DeclarativeValidationTakeover GitRepoVolumeDriver
    SeparateCacheWatchRPC
"""

NEEDED_BY = {
    "APIServerIdentity": "StorageVersionAPI UnknownVersionInteroperabilityProxy",
    "AtomicFIFO": """
        NodeControllerLeaseCircuitBreaker StaleControllerConsistencyDaemonSet StaleControllerConsistencyHPA
        StaleControllerConsistencyJob StaleControllerConsistencyReplicaSet StaleControllerConsistencyStatefulSet
    """,
    "ContainerRestartRules": "RestartAllContainersOnContainerExits",
    "DRAConsumableCapacity": "DRAFractionalCapacityRange",
    "DRAPartitionableDevices": "DRADeviceCompatibilityGroups DRAPartitionableDevicesType",
    "DRAResourcePoolStatus": "DRAPartitionableDevicesType",
    "GenericWorkload": """
        CompositePodGroup DRAWorkloadResourceClaims PodGroupPreemptionPolicy TopologyAwareWorkloadScheduling
        WorkloadWithJob
    """,
    "GracefulNodeShutdown": "GracefulNodeShutdownBasedOnPodPriority WindowsGracefulNodeShutdown",
    "MatchLabelKeysInPodTopologySpread": "MatchLabelKeysInPodTopologySpreadSelectorMerge",
    "PodLevelResources": """
        InPlacePodLevelResourcesVerticalScaling PodLevelResourceManagers PodLevelResourcesFixDefaulting
        PodLevelResourcesFixKubeletQOSClass
    """,
    "ResourceHealthStatus": "ResourceHealthStatusMessage",
    "TopologyAwareWorkloadScheduling": "CompositePodGroup",
}
"""Each gate with those that depend on it; a gate that depends on locked ones only is not listed."""
