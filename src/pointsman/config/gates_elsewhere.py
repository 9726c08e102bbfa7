"""Feature gates of the Kubernetes version we follow that mean nothing to a service proxy.

kube-proxy accepts them because it shares the gate registry with every other component; so do we, with a warning.
"""

from __future__ import annotations

SETTABLE = frozenset(
    """
    APIResponseCompression APIServerIdentity APIServerWebhookAuthenticationToken
    APIServingWithRoutine AllowDNSOnlyNodeCSR AllowInsecureKubeletCertificateSigningRequests
    AllowParsingUserUIDFromCertAuth AllowUnsafeMalformedObjectDeletion AtomicFIFO
    AtomicWriteVolumeUserFields AuthorizePodWebsocketUpgradeCreatePermission CBORServingAndStorage
    CPUManagerPolicyAlphaOptions CPUManagerPolicyBetaOptions CRDObservedGenerationTracking
    CRIListStreaming CSIVolumeHealth ChangeContainerStatusOnKubeletRestart
    ClearingNominatedNodeNameAfterBinding ClientsAllowCARotation ClientsAllowCBOR
    ClientsAllowTLSCacheGC ClientsPreferCBOR CloudControllerManagerWatchBasedRoutesReconciliation
    CloudControllerManagerWebhook ClusterTrustBundle ClusterTrustBundleProjection CompositePodGroup
    ConcurrentWatchObjectDecode ConsistentListFromCacheSkipTimeoutFallback ConstrainedImpersonation
    ContainerCheckpoint ContainerRestartRules ContainerStopSignals
    ControllerManagerReleaseLeaderElectionLockOnExit CoordinatedLeaderElection
    CrossNamespaceVolumeDataSource CustomCPUCFSQuotaPeriod DRAConsumableCapacity
    DRADerivedAttributes DRADeviceBindingConditions DRADeviceCompatibilityGroups
    DRAFractionalCapacityRange DRAListTypeAttributes DRANodeAllocatableResources
    DRAOptionalNodeOperations DRAPartitionableDevices DRAPartitionableDevicesType
    DRAResourceClaimGranularStatusAuthorization DRAResourcePoolStatus DRASchedulerFilterTimeout
    DRAWorkloadResourceClaims DeclarativeValidationBeta DefaultPodSysctls
    DeploymentReplicaSetTerminatingReplicas DetectCacheInconsistency EmptyDirVolumeMode EnvFiles
    EtcdRangeStream EventedPLEG EvictionRequestAPI ExcludeAdmissionWebhookVirtualResources
    ExtendWebSocketsToKubelet GRPCContainerProbeTLS GenericWorkload GracefulNodeShutdown
    GracefulNodeShutdownBasedOnPodPriority H2CContainerProbe HPAGeneration HPAOptimizedSelectorStore
    HPAScaleToZero HugepageAwareEviction ImageVolumeWithDigest InOrderInformersBatchProcess
    InPlacePodLevelResourcesVerticalScaling InPlacePodVerticalScalingExclusiveCPUs
    InPlacePodVerticalScalingExclusiveMemory InPlacePodVerticalScalingMemoryBackedVolumes
    InPlacePodVerticalScalingSchedulerPreemption InformerResourceVersion
    InterPodAffinityHostnameFastPath KMSv1 KubeletAllocatedPodsEndpoint KubeletCrashLoopBackOffMax
    KubeletEnsureSecretPulledImages KubeletInUserNamespace KubeletPodResourcesListUseActivePods
    KubeletRegistrationGetOnExistsOnly KubeletSeparateDiskGC
    KubeletServiceAccountTokenForCredentialProviders ListFromCacheSnapshot
    LocalStorageCapacityIsolationFSQuotaMonitoring ManifestBasedAdmissionControlConfig
    MatchLabelKeysInPodTopologySpread MatchLabelKeysInPodTopologySpreadSelectorMerge
    MaxUnavailableStatefulSet MemoryQoS MutablePVNodeAffinity MutablePodResourcesForSuspendedJobs
    MutableSchedulingDirectivesForSuspendedJobs MutatingAdmissionPolicy
    NodeControllerLeaseCircuitBreaker NodeLifecycleConditions NominatedNodeNameForExpectation
    OpenAPIEnums OpportunisticBatching PersistentVolumeClaimUnusedSinceTime
    PodAndContainerStatsFromCRI PodCertificateRequest PodDeletionCost PodGroupPreemptionPolicy
    PodLevelResourceManagers PodLevelResources PodLevelResourcesFixDefaulting
    PodLevelResourcesFixKubeletQOSClass PodLogsQuerySplitStreams PodTopologyLabelsAdmission PodsAPI
    PortForwardWebsockets QOSReserved ReduceDefaultCrashLoopBackOffDecay ReloadKubeletClientCAFile
    ReloadKubeletServerCertificateFile RemoteRequestHeaderUID ResourceHealthStatus
    ResourceHealthStatusMessage RestartAllContainersOnContainerExits RotateKubeletServerCertificate
    RuntimeClassInImageCriApi SELinuxMount SchedulerAsyncAPICalls SchedulerAsyncPreemption
    SchedulerPopFromBackoffQ SchedulerPreQueueingHints ServiceAccountNodeAudienceRestriction
    ServiceCIDRStatusFieldWiping ShardedListAndWatch SizeBasedListCostEstimate
    StaleControllerConsistencyDaemonSet StaleControllerConsistencyHPA StaleControllerConsistencyJob
    StaleControllerConsistencyReplicaSet StaleControllerConsistencyStatefulSet
    StatefulSetRecreateStrategy StatefulSetSemanticRevisionComparison StorageCapacityScoring
    StorageNamespaceIndex StorageVersionAPI StorageVersionHash StorageVersionMigrator
    StructuredAuthenticationConfigurationEgressSelector
    StructuredAuthenticationConfigurationJWKSMetrics TaintTolerationComparisonOperators
    TokenRequestServiceAccountUIDValidation TopologyAwareWorkloadScheduling
    TopologyManagerPolicyAlphaOptions TopologyManagerPolicyBetaOptions
    TranslateStreamCloseWebsocketRequests UnauthenticatedHTTP2DOSMitigation
    UnknownVersionInteroperabilityProxy UnlockWhileProcessingFIFO UserNamespacesHostNetworkSupport
    VolumeBindMountOptions VolumeLimitScaling WatchList WatchListCompression
    WebhookRoundTripLoadBalancing WindowsCPUAndMemoryAffinity WindowsGracefulNodeShutdown
    WindowsHostNetwork WorkloadWithJob
    """.split()  # noqa: SIM905  a quoted list of this length reads worse
)

LOCKED_ON = frozenset(
    """
    AggregatedDiscoveryRemoveBetaType AllowOverwriteTerminationGracePeriodSeconds
    CPUManagerPolicyOptions CRDValidationRatcheting CSIServiceAccountTokenSecrets
    CustomResourceFieldSelectors DRAAdminAccess DRADeviceTaintRules DRADeviceTaints
    DRAExtendedResource DRAPrioritizedList DRAResourceClaimDeviceStatus DeclarativeValidation
    DeclarativeValidationTakeover DisableAllocatorDualWrite DisableCPUQuotaWithExclusiveCPUs
    DisableNodeKubeProxyVersion DynamicResourceAllocation ExecProbeTimeout
    ExternalServiceAccountTokenSigner GitRepoVolumeDriver HPAConfigurableTolerance HostnameOverride
    ImageMaximumGCAge ImageVolume InOrderInformers InPlacePodVerticalScaling
    InPlacePodVerticalScalingInitContainers JobManagedBy KubeletCgroupDriverFromCRI
    KubeletFineGrainedAuthz KubeletPSI KubeletPodResourcesDynamicResources KubeletPodResourcesGet
    KubeletTracing MatchLabelKeysInPodAffinity MutableCSINodeAllocatableCount NodeDeclaredFeatures
    NodeInclusionPolicyInPodTopologySpread NodeLogQuery NodeSwap PLEGOnDemandRelist
    PodObservedGenerationTracking PodReadyToStartContainersCondition PodSchedulingReadiness
    ProcMountType RecoverVolumeExpansionFailure RecursiveReadOnlyMounts
    RelaxedEnvironmentVariableValidation SELinuxChangePolicy SELinuxMountReadWriteOncePod
    SeparateCacheWatchRPC SeparateTaintEvictionController ServiceAccountTokenJTI
    ServiceAccountTokenNodeBinding ServiceAccountTokenNodeBindingValidation
    ServiceAccountTokenPodNodeInfo SupplementalGroupsPolicy SystemdWatchdog
    TopologyManagerPolicyOptions UserNamespacesSupport VolumeAttributesClass
    WatchCacheInitializationPostStartHook
    """.split()  # noqa: SIM905  a quoted list of this length reads worse
)

LOCKED_OFF = frozenset(
    """

    """.split()  # noqa: SIM905  a quoted list of this length reads worse
)
