//! Who may reach the API server besides the holders of certificates, and what is noted of it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use carrack_apiserver::AuthenticationConfiguration;
use carrack_apiserver::audit::{Audit, Policy};
use carrack_apiserver::serve::AuditLog;
use carrack_auth::authn::StaticTokens;
use carrack_gpu_extender::{GpuAnnotations, Names};
use clap::Args;

/// Flags of upstream's API server.
#[derive(Debug, Clone, Default, Args)]
pub struct AccessArgs {
    /// File of tokens that are accepted: lines of token,user,uid,"group1,group2"
    #[arg(long, value_name = "FILE")]
    pub token_auth_file: Option<PathBuf>,
    /// Providers of OpenID Connect whose tokens are accepted (apiserver.config.k8s.io/v1 AuthenticationConfiguration)
    #[arg(long, value_name = "FILE")]
    pub authentication_config: Option<PathBuf>,
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

impl AccessArgs {
    /// The tokens of the file.
    ///
    /// # Errors
    /// The file cannot be read, or is no file of tokens.
    pub fn tokens(&self) -> anyhow::Result<StaticTokens> {
        let Some(path) = &self.token_auth_file else { return Ok(StaticTokens::default()) };
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        StaticTokens::parse(&text).with_context(|| format!("{} cannot be used", path.display()))
    }

    /// Whose tokens are accepted besides those of the cluster's own issuer.
    ///
    /// # Errors
    /// The file cannot be read, or says something that cannot be done.
    pub fn authentication(&self, own_issuer: &str) -> anyhow::Result<AuthenticationConfiguration> {
        let Some(path) = &self.authentication_config else { return Ok(AuthenticationConfiguration::default()) };
        let text = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        AuthenticationConfiguration::parse(&text, own_issuer)
            .map_err(|why| anyhow::anyhow!("{} cannot be used: {why}", path.display()))
    }

    /// What sees to it that nobody else says which GPUs pods have.
    #[must_use]
    pub fn gpu_annotations(&self) -> GpuAnnotations {
        GpuAnnotations::new(&self.gpus.gpu_prefix, &self.gpus.gpu_writer)
    }

    /// The audit log, if one is wanted.
    ///
    /// # Errors
    /// The policy cannot be used, or the log cannot be opened.
    pub fn audit(&self) -> anyhow::Result<Option<Audit>> {
        let (Some(policy), Some(log)) = (&self.audit_policy_file, &self.audit_log_path) else { return Ok(None) };
        let text = std::fs::read(policy).with_context(|| format!("cannot read {}", policy.display()))?;
        let parsed =
            Policy::parse(&text).map_err(|why| anyhow::anyhow!("{} cannot be used: {why}", policy.display()))?;
        let max_bytes = self.audit_log_maxsize.max(1).saturating_mul(1_000_000);
        let sink = AuditLog::open(log, max_bytes, self.audit_log_maxbackup)
            .with_context(|| format!("cannot write {}", log.display()))?;
        Ok(Some(Audit { policy: Arc::new(parsed), sink: Arc::new(sink) }))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use crate::cli::Cli;

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
}
