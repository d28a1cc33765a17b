//! Who may reach the API server besides the holders of certificates, what is noted of it, and which APIs it serves.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use carrack_apiserver::admission::AdmissionConfiguration;
use carrack_apiserver::audit::{Audit, Policy};
use carrack_apiserver::serve::{AuditLog, Settings};
use carrack_apiserver::{AuthenticationConfiguration, RuntimeConfig};
use carrack_auth::Anonymous;
use carrack_auth::authn::StaticTokens;
use carrack_auth::tls::Offered;
use carrack_gpu_extender::{GpuAnnotations, Names};
use clap::Args;

use super::oidc::OidcArgs;

/// Flags of upstream's API server.
#[derive(Debug, Clone, Default, Args)]
pub struct AccessArgs {
    /// File of tokens that are accepted: lines of token,user,uid,"group1,group2"
    #[arg(long, value_name = "FILE")]
    pub token_auth_file: Option<PathBuf>,
    /// Providers of OpenID Connect whose tokens are accepted (apiserver.config.k8s.io/v1 AuthenticationConfiguration)
    #[arg(long, value_name = "FILE")]
    pub authentication_config: Option<PathBuf>,
    /// What admission plugins are told: defaults and exemptions of PodSecurity, what nobody has without a ResourceQuota, limits
    /// of EventRateLimit, credentials for webhooks (apiserver.config.k8s.io/v1 AdmissionConfiguration)
    #[arg(long, value_name = "FILE")]
    pub admission_control_config_file: Option<PathBuf>,
    /// Admission plugins to switch on besides those that are on anyway: EventRateLimit
    #[arg(long, value_name = "PLUGIN", value_delimiter = ',')]
    pub enable_admission_plugins: Vec<String>,
    /// Admission plugins to switch off although they are on anyway, such as PodSecurity
    #[arg(long, value_name = "PLUGIN", value_delimiter = ',')]
    pub disable_admission_plugins: Vec<String>,
    /// Seconds that pods stay on a node that is not ready, where they do not say it themselves; 300 without it
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(i64).range(0..))]
    pub default_not_ready_toleration_seconds: Option<i64>,
    /// Seconds that pods stay on a node that is unreachable, where they do not say it themselves; 300 without it
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(i64).range(0..))]
    pub default_unreachable_toleration_seconds: Option<i64>,
    /// Whether requests without credentials are taken, as those of system:anonymous; true without it
    #[arg(long, value_name = "YES", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub anonymous_auth: Option<bool>,
    /// A provider of OpenID Connect
    #[command(flatten)]
    pub oidc: OidcArgs,
    /// Oldest version of TLS that is spoken, such as VersionTLS13; VersionTLS12 without it
    #[arg(long, value_name = "VERSION")]
    pub tls_min_version: Option<String>,
    /// Ciphers that are spoken in TLS 1.2, by their names; all that are safe without it
    #[arg(long, value_name = "CIPHER", value_delimiter = ',')]
    pub tls_cipher_suites: Vec<String>,
    /// Most requests at a time on one connection of HTTP/2; 250 without it, and with 0
    #[arg(long, value_name = "NUMBER")]
    pub http2_max_streams_per_connection: Option<u32>,
    /// How long a request may take that does not last, such as 2m; 1m without it. Its sender may give it less
    #[arg(long, value_name = "DURATION", value_parser = carrack_kubelet::configuration::duration)]
    pub request_timeout: Option<Duration>,
    /// How long events are kept, such as 30m; 1h without it, for good with 0s
    #[arg(long, value_name = "DURATION", value_parser = carrack_kubelet::configuration::duration)]
    pub event_ttl: Option<Duration>,
    /// How long certificates last at most that somebody asked for, such as 24h; a year without it
    #[arg(long, value_name = "DURATION", value_parser = carrack_kubelet::configuration::duration)]
    pub cluster_signing_duration: Option<Duration>,
    /// Policy that says what goes into the audit log (audit.k8s.io/v1)
    #[arg(long, value_name = "FILE", requires = "audit_log_path")]
    pub audit_policy_file: Option<PathBuf>,
    /// The audit log
    #[arg(long, value_name = "FILE", requires = "audit_policy_file")]
    pub audit_log_path: Option<PathBuf>,
    /// Size in MB at which the audit log is begun anew
    #[arg(long, value_name = "MB", default_value_t = 100)]
    pub audit_log_maxsize: u64,
    /// How many older audit logs are kept
    #[arg(long, value_name = "NUMBER", default_value_t = 10)]
    pub audit_log_maxbackup: u32,
    /// Most requests at a time that only read; 400 without it. Together with those that write they are what priority levels share
    #[arg(long, value_name = "NUMBER")]
    pub max_requests_inflight: Option<u32>,
    /// Most requests at a time that write; 200 without it
    #[arg(long, value_name = "NUMBER")]
    pub max_mutating_requests_inflight: Option<u32>,
    /// Serve more APIs than those that are generally available, or fewer: GROUP/VERSION=true, GROUP/VERSION/RESOURCE=true,
    /// api/beta=true, api/alpha=true, api/all=true, or the same with false
    #[arg(long, value_name = "API=YES", value_delimiter = ',')]
    pub runtime_config: Vec<String>,
    /// Who may say which GPUs pods have
    #[command(flatten)]
    pub gpus: GpuArgs,
}

/// What pods' annotations say of GPUs, and who may write it.
#[derive(Debug, Clone, Default, Args)]
pub struct GpuArgs {
    /// Another prefix of GPU extenders' resources, besides tencent.com: what pods' annotations say below it of GPUs, only
    /// the extender and administrators may write
    #[arg(long, value_name = "PREFIX", value_parser = gpu_prefix)]
    pub gpu_prefix: Vec<String>,
    /// A user or group that may write it, too, such as an extender of another make
    #[arg(long, value_name = "NAME")]
    pub gpu_writer: Vec<String>,
}

fn gpu_prefix(text: &str) -> Result<String, String> {
    Names::check(text).map(|()| text.to_owned())
}

/// What a flag or a file says, or that it cannot be used and why.
fn usable<T>(place: &str, said: Result<T, impl Display>) -> anyhow::Result<T> {
    said.map_err(|why| anyhow::anyhow!("{place} cannot be used: {why}"))
}

/// What a file says that a flag names.
fn made_of<T>(path: &Path, parse: impl FnOnce(&[u8]) -> Result<T, String>) -> anyhow::Result<T> {
    let text = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    usable(&path.display().to_string(), parse(&text))
}

impl AccessArgs {
    /// The tokens of the file.
    ///
    /// # Errors
    /// The file cannot be read, or is no file of tokens.
    pub fn tokens(&self) -> anyhow::Result<StaticTokens> {
        let Some(path) = &self.token_auth_file else { return Ok(StaticTokens::default()) };
        made_of(path, |text| {
            let text = std::str::from_utf8(text).map_err(|why| why.to_string())?;
            StaticTokens::parse(text).map_err(|why| why.to_string())
        })
    }

    /// Whose tokens are accepted besides those of the cluster's own issuer.
    ///
    /// # Errors
    /// The file cannot be read, or says something that cannot be done.
    pub fn authentication(&self, own_issuer: &str) -> anyhow::Result<AuthenticationConfiguration> {
        let parse = |text: &[u8]| AuthenticationConfiguration::parse(text, own_issuer);
        let all = match (&self.authentication_config, self.oidc.configuration()?) {
            (Some(path), _) => made_of(path, parse)?,
            (None, Some(text)) => usable("--oidc-issuer-url", parse(text.as_bytes()))?,
            (None, None) => AuthenticationConfiguration::default(),
        };
        self.anonymous(all)
    }

    /// The same with what is said of requests without credentials, in one place alone.
    fn anonymous(&self, mut all: AuthenticationConfiguration) -> anyhow::Result<AuthenticationConfiguration> {
        let Some(are_taken) = self.anonymous_auth else { return Ok(all) };
        anyhow::ensure!(
            all.anonymous == Anonymous::All,
            "--anonymous-auth cannot be used: --authentication-config says which requests are taken without credentials"
        );
        all.anonymous = if are_taken { Anonymous::All } else { Anonymous::None };
        Ok(all)
    }

    /// What is spoken with clients.
    ///
    /// # Errors
    /// There is no such version, or no such cipher.
    pub fn tls(&self) -> anyhow::Result<Offered> {
        let offered = Offered::named(self.tls_min_version.as_deref().unwrap_or_default(), &self.tls_cipher_suites);
        usable("--tls-min-version and --tls-cipher-suites", offered)
    }

    /// What is named for that in vain, since nobody serves it any more.
    #[must_use]
    pub fn too_old(&self) -> Vec<&str> {
        let named = self.tls_min_version.iter().chain(&self.tls_cipher_suites);
        named.map(String::as_str).filter(|name| Offered::too_old(name)).collect()
    }

    /// What admission plugins are told, and which are on.
    ///
    /// # Errors
    /// The file, or one that it names, cannot be read, or says something that cannot be done; a plugin is not there, cannot be
    /// off, or is to be both.
    pub fn admission(&self) -> anyhow::Result<AdmissionConfiguration> {
        let (on, off) = (&self.enable_admission_plugins, &self.disable_admission_plugins);
        let both: Vec<&str> = on.iter().filter(|name| off.contains(name)).map(String::as_str).collect();
        anyhow::ensure!(
            both.is_empty(),
            "--enable-admission-plugins and --disable-admission-plugins both name {}",
            both.join(", ")
        );
        self.told()?
            .tolerate(self.default_not_ready_toleration_seconds, self.default_unreachable_toleration_seconds)
            .enable(on.iter().map(String::as_str))
            .map_err(|why| anyhow::anyhow!("--enable-admission-plugins cannot be used: {why}"))?
            .disable(off.iter().map(String::as_str))
            .map_err(|why| anyhow::anyhow!("--disable-admission-plugins cannot be used: {why}"))
    }

    /// What admission plugins are told.
    fn told(&self) -> anyhow::Result<AdmissionConfiguration> {
        let Some(path) = &self.admission_control_config_file else { return Ok(AdmissionConfiguration::default()) };
        // As upstream: files that it names are looked for beside it.
        let beside = path.parent().unwrap_or(Path::new(""));
        let read = |name: &str| {
            let path = beside.join(name);
            std::fs::read(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))
        };
        made_of(path, |text| AdmissionConfiguration::parse(text, read))
    }

    /// How many requests are worked on at a time.
    ///
    /// # Errors
    /// There is room for none.
    fn in_flight(&self) -> anyhow::Result<usize> {
        let [reading, writing] = [(self.max_requests_inflight, 400), (self.max_mutating_requests_inflight, 200)]
            .map(|(said, usual)| said.unwrap_or(usual));
        let all = reading.saturating_add(writing);
        anyhow::ensure!(all > 0, "--max-requests-inflight and --max-mutating-requests-inflight cannot both be 0");
        Ok(usize::try_from(all)?)
    }

    /// The socket's bounds.
    ///
    /// # Errors
    /// There is room, or time, for no request.
    pub fn settings(&self) -> anyhow::Result<Settings> {
        let usual = Settings::default();
        let request = self.request_timeout.unwrap_or(usual.request);
        anyhow::ensure!(!request.is_zero(), "--request-timeout cannot be 0: no request would be answered");
        // What has more time has it for its body, and for those that it is carried on to, too.
        let body = self.request_timeout.unwrap_or(usual.body);
        let node_answer = usual.node_answer.max(request);
        let streams = self.http2_max_streams_per_connection.filter(|most| *most > 0);
        let max_streams = streams.unwrap_or(usual.max_streams);
        Ok(Settings { max_in_flight: self.in_flight()?, max_streams, request, body, node_answer, ..usual })
    }

    /// Which APIs are served.
    ///
    /// # Errors
    /// It is told of one that is not there, or in words that mean nothing.
    pub fn runtime(&self) -> anyhow::Result<RuntimeConfig> {
        usable("--runtime-config", RuntimeConfig::parse(self.runtime_config.iter().map(String::as_str)))
    }

    /// What sees to it that nobody else says which GPUs pods have.
    #[must_use]
    pub fn gpu_annotations(&self) -> GpuAnnotations {
        GpuAnnotations::new(&self.gpus.gpu_prefix, &self.gpus.gpu_writer)
    }

    /// Looks whether all of this can be done, before anything is.
    ///
    /// # Errors
    /// What cannot be done.
    pub fn check(&self, own_issuer: &str) -> anyhow::Result<()> {
        self.tokens()?;
        self.authentication(own_issuer)?;
        self.policy()?;
        self.admission()?;
        self.runtime()?;
        self.settings()?;
        self.tls()?;
        Ok(())
    }

    /// What is noted of requests, if anything is.
    fn policy(&self) -> anyhow::Result<Option<Policy>> {
        let Some(path) = &self.audit_policy_file else { return Ok(None) };
        made_of(path, Policy::parse).map(Some)
    }

    /// The audit log, if one is wanted.
    ///
    /// # Errors
    /// The policy cannot be used, or the log cannot be opened.
    pub fn audit(&self) -> anyhow::Result<Option<Audit>> {
        let (Some(policy), Some(log)) = (self.policy()?, &self.audit_log_path) else { return Ok(None) };
        let max_bytes = self.audit_log_maxsize.max(1).saturating_mul(1_000_000);
        let sink = AuditLog::open(log, max_bytes, self.audit_log_maxbackup)
            .with_context(|| format!("cannot write {}", log.display()))?;
        Ok(Some(Audit { policy: Arc::new(policy), sink: Arc::new(sink) }))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use carrack_auth::Anonymous;

    use super::{AccessArgs, Settings};
    use crate::cli::{Cli, Command};

    /// What a plugin is told may be in a file beside; what is wrong is told with the file that was named.
    #[test]
    fn admission_is_told_by_files() {
        const SECURITY: &str = "apiVersion: pod-security.admission.config.k8s.io/v1\nkind: PodSecurityConfiguration\n";
        let directory = tempfile::tempdir().expect("temporary directory");
        std::fs::write(directory.path().join("good.yaml"), SECURITY).expect("written");
        std::fs::write(directory.path().join("bad.yaml"), format!("{SECURITY}exempt: {{}}\n")).expect("written");
        let file = directory.path().join("admission.yaml");
        let said = |plugin: &str| {
            let head = "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\n";
            let text = format!("{head}plugins:\n- name: PodSecurity\n  path: {plugin}\n");
            std::fs::write(&file, text).expect("written");
            let args = AccessArgs { admission_control_config_file: Some(file.clone()), ..AccessArgs::default() };
            args.admission().map(drop).map_err(|why| why.to_string())
        };
        assert_eq!(said("good.yaml"), Ok(()));
        for (plugin, place) in [("bad.yaml", "plugins[0].path: unknown field `exempt`"), ("none.yaml", "cannot read")] {
            let why = said(plugin).expect_err("refused");
            assert!(why.starts_with(&file.display().to_string()) && why.contains(place), "{why}");
        }
    }

    #[test]
    fn requests_at_a_time() {
        for (reading, writing, want) in [
            (None, None, Some(600)),
            (Some(10), None, Some(210)),
            (Some(0), Some(5), Some(5)),
            (Some(0), Some(0), None),
        ] {
            let (max_requests_inflight, max_mutating_requests_inflight) = (reading, writing);
            let args = AccessArgs { max_requests_inflight, max_mutating_requests_inflight, ..AccessArgs::default() };
            assert_eq!(args.in_flight().ok(), want, "{reading:?} {writing:?}");
        }
    }

    #[test]
    fn how_long_requests_and_events_have() {
        let check = |words: &[&str], want: Option<[u64; 3]>, ttl_s: Option<u64>| {
            let words = ["carrack", "apiserver"].iter().chain(words);
            let parsed = Cli::try_parse_from(words).expect("flags");
            let Command::Apiserver(args) = parsed.command else { panic!("another command") };
            let settings = args.access.settings().ok();
            let told = |all: Settings| [all.request, all.body, all.node_answer].map(|time| time.as_secs());
            assert_eq!(settings.map(told), want);
            // It is found before anything is done, too.
            assert_eq!(args.access.check("https://own").is_ok(), want.is_some());
            assert_eq!(args.access.event_ttl.map(|ttl| ttl.as_secs()), ttl_s);
        };
        check(&[], Some([60, 60, 60]), None);
        check(&["--request-timeout", "2m30s"], Some([150, 150, 150]), None);
        check(&["--request-timeout", "5s", "--event-ttl", "30m"], Some([5, 5, 60]), Some(1800));
        check(&["--request-timeout", "0s", "--event-ttl", "0s"], None, Some(0));
    }

    #[test]
    fn who_comes_in_and_how() {
        let args = |words: &[&str]| -> Option<AccessArgs> {
            let words = ["carrack", "apiserver"].iter().chain(words);
            match Cli::try_parse_from(words).ok()?.command {
                Command::Apiserver(args) => Some(args.access),
                _ => None,
            }
        };
        let takes =
            |words: &[&str]| args(words).and_then(|args| Some(args.authentication("https://own").ok()?.anonymous));
        assert_eq!(takes(&[]), Some(Anonymous::All));
        assert_eq!(takes(&["--anonymous-auth=true"]), Some(Anonymous::All));
        assert_eq!(takes(&["--anonymous-auth=false"]), Some(Anonymous::None));
        assert_eq!(takes(&["--anonymous-auth", "--http2-max-streams-per-connection=9"]), Some(Anonymous::All));
        let provider = ["--oidc-issuer-url", "https://login.example.com", "--oidc-client-id", "c"];
        assert_eq!(takes(&provider), Some(Anonymous::All));
        assert_eq!(takes(&["--oidc-issuer-url", "http://login.example.com", "--oidc-client-id", "c"]), None);
        assert!(args(&provider[..2]).is_none(), "for whom is not said");
        assert!(args(&provider[2..]).is_none(), "whose is not said");
        let both = [&provider[..], &["--authentication-config", "other.yaml"]].concat();
        assert!(args(&both).is_none(), "it is said in two places");
        // A comma may be part of a value.
        let claims = ["--oidc-required-claim", "dn=cn=a,o=b", "--oidc-required-claim", "hd=c"];
        let required = args(&[&provider[..], &claims].concat()).map(|args| args.oidc.oidc_required_claim);
        assert_eq!(required, Some(vec!["dn=cn=a,o=b".to_owned(), "hd=c".to_owned()]));

        let streams = |words: &[&str]| args(words).and_then(|args| Some(args.settings().ok()?.max_streams));
        assert_eq!(streams(&[]), Some(250));
        assert_eq!(streams(&["--http2-max-streams-per-connection", "1000"]), Some(1000));
        assert_eq!(streams(&["--http2-max-streams-per-connection", "0"]), Some(250));
        assert_eq!(streams(&["--http2-max-streams-per-connection=-1"]), None);
        let speaks = |words: &[&str]| args(words).is_some_and(|args| args.tls().is_ok());
        assert!(speaks(&["--tls-min-version", "VersionTLS13"]));
        let named = "TLS_AES_128_GCM_SHA256,TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256";
        assert!(speaks(&["--tls-cipher-suites", named]));
        assert!(!speaks(&["--tls-min-version", "1.3"]));
        let listed = "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,TLS_RSA_WITH_AES_128_GCM_SHA256";
        let old = ["--tls-min-version", "VersionTLS10", "--tls-cipher-suites", listed];
        assert!(speaks(&old));
        let found = args(&old).map(|args| args.too_old().join(","));
        assert_eq!(found.as_deref(), Some("VersionTLS10,TLS_RSA_WITH_AES_128_GCM_SHA256"));
        assert!(args(&["--default-not-ready-toleration-seconds=-1"]).is_none());
    }

    #[test]
    fn the_end_may_be_put_off() {
        let check = |words: &[&str], want: Option<u64>| {
            let words = ["carrack", "apiserver"].iter().chain(words);
            let delay = match Cli::try_parse_from(words).map(|parsed| parsed.command) {
                Ok(Command::Apiserver(args)) => Some(args.shutdown_delay_duration.as_secs()),
                _ => None,
            };
            assert_eq!(delay, want);
        };
        check(&[], Some(0));
        check(&["--shutdown-delay-duration", "20"], Some(20));
        check(&["--shutdown-delay-duration", "1m10s"], Some(70));
        check(&["--shutdown-delay-duration", "soon"], None);
    }

    #[test]
    fn plugins_are_switched_off_by_name() {
        let check = |on: &[&str], off: &[&str], want: Result<(), &str>| {
            let [enable_admission_plugins, disable_admission_plugins] =
                [on, off].map(|names| names.iter().map(|name| (*name).to_owned()).collect());
            let args = AccessArgs { enable_admission_plugins, disable_admission_plugins, ..AccessArgs::default() };
            match (args.admission(), want) {
                (Ok(_), Ok(())) => {}
                (Err(got), Err(want)) => assert!(got.to_string().contains(want), "{got}, and not {want}"),
                (got, want) => panic!("{:?}, and not {want:?}", got.map(drop)),
            }
        };
        check(&["NodeRestriction"], &["PodSecurity", "Priority"], Ok(()));
        check(
            &[],
            &["JobValidation"],
            Err("--disable-admission-plugins cannot be used: admission plugin \"JobValidation\""),
        );
        check(&["Priority"], &["PodSecurity", "Priority"], Err("both name Priority"));
    }

    #[test]
    fn plugins_are_switched_on_by_name() {
        let check = |names: &[&str], good: bool| {
            let names = names.iter().map(|name| (*name).to_owned()).collect();
            let args = AccessArgs { enable_admission_plugins: names, ..AccessArgs::default() };
            assert_eq!(args.admission().is_ok(), good, "{:?}", args.enable_admission_plugins);
        };
        check(&["NodeRestriction", "ResourceQuota"], true);
        check(&["EventRateLimit"], false);
        check(&["NoSuchPlugin"], false);
    }

    #[test]
    fn a_prefix_of_resources_is_a_name() {
        let check = |words: &[&str], good: bool| {
            let words = ["carrack", "apiserver"].iter().chain(words);
            assert_eq!(Cli::try_parse_from(words.clone()).is_ok(), good, "{:?}", words.collect::<Vec<_>>());
        };
        check(&["--gpu-prefix", "example.com", "--gpu-prefix", "example.org", "--gpu-writer", "system:nodes"], true);
        check(&["--gpu-prefix", "example.com/x"], false);
        check(&["--gpu-prefix", ""], false);
    }

    #[test]
    fn apis_that_are_not_there_are_refused() {
        let check = |words: &[&str], good: bool| {
            let words = ["carrack", "apiserver"].iter().chain(words);
            let parsed = Cli::try_parse_from(words).expect("flags");
            let Command::Apiserver(args) = parsed.command else { panic!("another command") };
            assert_eq!(args.access.runtime().is_ok(), good, "{:?}", args.access.runtime_config);
        };
        check(&[], true);
        check(&["--runtime-config", "api/beta=true,scheduling.k8s.io/v1alpha2/podgroups=true"], true);
        check(&["--runtime-config=api/all", "--runtime-config=api/alpha=false"], true);
        check(&["--runtime-config=autoscaling/v1=false"], false);
        check(&["--runtime-config", "api/beta=true,example.com/v1=true"], false);
    }
}
