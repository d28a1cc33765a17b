//! The API server: what it is made of, and the way of a request through it.
//!
//! ```text
//!   request ─► route ─► impersonate ─► authorize ─┬► resource: registry, subresources, reviews
//!                                                 ├► a group served by code (LocalApi)
//!                                                 └► discovery, OpenAPI, health, version, metrics
//! ```
//!
//! No clock, no runtime, no IO of its own: time and chance come from [`Env`], state from the
//! [`Store`], so the simulator can poll a request to its end by hand.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use carrack_auth::authn::{self, Authenticator, Impersonated};
use carrack_auth::pki::RequestSigner;
use carrack_auth::token::Issuer;
use carrack_auth::{Authorizer, Caller};
use carrack_schema::table::ResourceInfo;
use carrack_store::{Entry, Store};
use http::header::{HeaderValue, WARNING};
use http::{HeaderMap, Method, StatusCode, request};

use crate::admission::webhook::WebhookUsers;
use crate::admission::{self, AdmissionConfiguration, AdmissionPlugin, Hooks, HooksFold};
use crate::aggregate::{self, Remote, Remotes, RemotesFold};
use crate::audit::{Audit, Notes, Record};
use crate::body::Response;
use crate::catalog::{Catalog, CatalogFold};
use crate::context::Cx;
use crate::conversion::Converter;
use crate::env::Env;
use crate::expiry::EVENT_TTL;
use crate::flow::FlowFold;
use crate::follow::{Fold, Follower};
use crate::health::Phase;
use crate::kept::Kept;
use crate::keys;
use crate::local::{LocalApi, LocalRequest};
use crate::metrics::{Known, Metered, Metrics, PodSecurityMetrics};
use crate::oidc::{AuthenticationConfiguration, Providers};
use crate::openapi::Documents;
use crate::pretty;
use crate::query::Query;
use crate::registry::defined::Definitions;
use crate::route::{Asked, RequestInfo, ResourceRequest};
use crate::runtime_config::RuntimeConfig;
use crate::serve::Gate;
use crate::services::Network;
use crate::status::Status;
use crate::{dispatch, nonresource, yaml};
use carrack_engine::zpages::flagz::Flags;

/// What an API server is made of.
pub struct Config {
    /// Where objects are.
    pub store: Arc<dyn Store>,
    /// Clock and random numbers.
    pub env: Arc<dyn Env>,
    /// Knows who presents which credentials. Without one, every request over a socket is refused.
    pub authenticator: Option<Authenticator>,
    /// Whose tokens are taken besides those of the cluster's own.
    pub authentication: AuthenticationConfiguration,
    /// Signs service account tokens.
    pub issuer: Option<Issuer>,
    /// What built-in admission plugins are told.
    pub admission: AdmissionConfiguration,
    /// How long an event is kept after it happened last; for good where this is nothing.
    pub event_ttl: Duration,
    /// Admission plugins besides the built-in ones, which come first.
    pub plugins: Vec<Box<dyn AdmissionPlugin>>,
    /// Groups that are served by code.
    pub apis: Vec<Arc<dyn LocalApi>>,
    /// Which of the built-in kinds are served.
    pub runtime: RuntimeConfig,
    /// The certificate authority that clients in pods are to trust, in PEM; see [`ApiServer::ca_pem`].
    pub ca_pem: String,
    /// The authority of the certificate that this server shows to the servers of other APIs, in PEM.
    pub front_proxy_ca_pem: String,
    /// What services are given.
    pub network: Network,
    /// Makes the certificates that are asked for and approved; without it, requests wait for another signer.
    pub signer: Option<RequestSigner>,
    /// Notes who does what.
    pub audit: Option<Audit>,
    /// What the process was told on its command line.
    pub flags: Flags,
    /// A bug put in on purpose, for the simulator, which must find it: what is below `watch/` is let through, whatever its
    /// method.
    pub planted_writing_watches: bool,
}

impl Config {
    /// A server with nothing but the built-in parts, reached in the process only.
    pub fn new(store: Arc<dyn Store>, env: Arc<dyn Env>) -> Config {
        Config {
            store,
            env,
            authenticator: None,
            authentication: AuthenticationConfiguration::default(),
            issuer: None,
            admission: AdmissionConfiguration::default(),
            event_ttl: EVENT_TTL,
            plugins: Vec::new(),
            apis: Vec::new(),
            runtime: RuntimeConfig::default(),
            ca_pem: String::new(),
            front_proxy_ca_pem: String::new(),
            network: Network::default(),
            signer: None,
            audit: None,
            flags: Flags::new(),
            planted_writing_watches: false,
        }
    }
}

/// The API server. Clones share everything.
#[derive(Clone)]
pub struct ApiServer {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub store: Arc<dyn Store>,
    /// The same without being timed, for the few objects that every write looks up: nobody asked for them.
    pub untimed: Arc<dyn Store>,
    pub env: Arc<dyn Env>,
    pub authenticator: Option<Authenticator>,
    pub providers: Providers,
    pub issuer: Option<Arc<Issuer>>,
    pub plugins: Vec<Box<dyn AdmissionPlugin>>,
    /// By what webhooks know this server.
    pub webhook_users: WebhookUsers,
    pub apis: Vec<Arc<dyn LocalApi>>,
    pub ca_pem: String,
    pub network: Network,
    pub signer: Option<RequestSigner>,
    pub audit: Option<Audit>,
    pub flags: Flags,
    pub event_ttl: Duration,
    planted_writing_watches: bool,
    catalog: Follower<CatalogFold>,
    authorizer: Follower<AuthorizerFold>,
    flow: Follower<FlowFold>,
    /// Where requests that come over sockets wait, once there are some.
    gate: Mutex<Weak<Gate>>,
    hooks: Follower<HooksFold>,
    remotes: Follower<RemotesFold>,
    pub kept: Kept,
    pub remote_documents: aggregate::Documents,
    pub front_proxy_ca_pem: String,
    pub documents: Documents,
    pub definitions: Arc<Definitions>,
    pub metrics: Metrics,
    pub phase: Phase,
}

/// Follows what authorization depends on.
struct AuthorizerFold {
    authorizer: Authorizer,
    /// Where the observed resources are, in their order.
    prefixes: Vec<String>,
}

/// (group, resource) that the authorizer has a use for.
const OBSERVED: [(&str, &str); 9] = [
    ("rbac.authorization.k8s.io", "roles"),
    ("rbac.authorization.k8s.io", "clusterroles"),
    ("rbac.authorization.k8s.io", "rolebindings"),
    ("rbac.authorization.k8s.io", "clusterrolebindings"),
    ("", "pods"),
    ("", "persistentvolumes"),
    ("storage.k8s.io", "volumeattachments"),
    ("resource.k8s.io", "resourceslices"),
    ("certificates.k8s.io", "podcertificaterequests"),
];

impl Fold for AuthorizerFold {
    fn clear(&mut self) {
        self.authorizer = Authorizer::new();
    }

    fn apply(&mut self, key: &str, entry: Option<&Entry>) {
        let found = OBSERVED
            .iter()
            .zip(&self.prefixes)
            .find_map(|(resource, prefix)| Some((resource, key.strip_prefix(&**prefix)?)));
        let Some(((group, resource), place)) = found else { return };
        let (namespace, name) = place.split_once('/').unwrap_or(("", place));
        let json = entry.map(Entry::value);
        if let Err(why) = self.authorizer.observe(group, resource, namespace, name, json.as_deref()) {
            tracing::warn!(key, error = %why, "authorization goes without an object");
        }
    }
}

impl ApiServer {
    /// A server over a store. Nothing is read or written until the first request;
    /// see [`Self::bootstrap`](crate::bootstrap).
    pub fn new(config: Config) -> ApiServer {
        let issuer = config.issuer.map(Arc::new);
        let pod_security = PodSecurityMetrics::default();
        let webhook_users = config.admission.webhook_users.clone();
        let hooks = HooksFold::of(&config.admission);
        let mut plugins = admission::built_in(&config.network, issuer.as_ref(), config.admission, &pod_security);
        plugins.extend(config.plugins);
        let prefixes: Vec<String> = OBSERVED.iter().map(|(group, resource)| keys::of(group, resource, None)).collect();
        let metrics = Metrics::new(plugins.iter().map(|plugin| plugin.name()), &pod_security);
        let store = Metered::new(Arc::clone(&config.store), Arc::clone(&config.env), metrics.store.clone());
        ApiServer {
            inner: Arc::new(Inner {
                store: Arc::new(store),
                untimed: config.store,
                env: config.env,
                authenticator: config.authenticator,
                providers: Providers::new(config.authentication.providers),
                issuer,
                plugins,
                webhook_users,
                apis: config.apis,
                ca_pem: config.ca_pem,
                network: config.network,
                signer: config.signer,
                audit: config.audit,
                flags: config.flags,
                event_ttl: config.event_ttl,
                planted_writing_watches: config.planted_writing_watches,
                catalog: Follower::new(CatalogFold::prefixes(), CatalogFold::new(&config.runtime)),
                flow: Follower::new(FlowFold::prefixes(), FlowFold::default()),
                gate: Mutex::default(),
                authorizer: Follower::new(prefixes.clone(), AuthorizerFold { authorizer: Authorizer::new(), prefixes }),
                hooks: Follower::new(HooksFold::prefixes(), hooks),
                remotes: Follower::new(RemotesFold::prefixes(), RemotesFold::default()),
                kept: Kept::new(),
                remote_documents: aggregate::Documents::default(),
                front_proxy_ca_pem: config.front_proxy_ca_pem,
                documents: Documents::default(),
                definitions: Arc::default(),
                metrics,
                phase: Phase::default(),
            }),
        }
    }

    /// The store under it.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.inner.store
    }

    /// Clock and random numbers.
    pub fn env(&self) -> &Arc<dyn Env> {
        &self.inner.env
    }

    /// The certificate authority that pods trust, in PEM.
    pub fn ca_pem(&self) -> &str {
        &self.inner.ca_pem
    }

    /// Whether the bootstrap objects are there, so that `/readyz` says yes.
    pub fn is_ready(&self) -> bool {
        self.inner.phase.bootstrapped.load(Ordering::Acquire)
    }

    /// `/readyz` says no from now on, so that nobody sends anything new here; all else goes on.
    pub fn announce_end(&self) {
        self.inner.phase.ending.store(true, Ordering::Release);
    }

    /// Requests wait at this gate from now on.
    pub(crate) fn told_of(&self, gate: &Arc<Gate>) {
        *self.inner.gate.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(gate);
    }

    /// Where requests wait; none where none come over sockets.
    pub(crate) fn gate(&self) -> Option<Arc<Gate>> {
        self.inner.gate.lock().unwrap_or_else(PoisonError::into_inner).upgrade()
    }

    /// What the API offers at this moment.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn catalog(&self) -> Result<Arc<Catalog>, Status> {
        self.inner.catalog().await
    }

    /// Answers a request of a caller that has been authenticated.
    pub async fn handle(&self, request: http::Request<Bytes>, caller: Caller) -> Response {
        let (parts, body) = request.into_parts();
        let asked = Asked::of(&parts.method, &parts.uri);
        match self.acts_for(&caller, &asked, &parts.headers).await {
            Ok(other) => self.answer(&parts, &asked, body, Acting::new(caller, other)).await,
            Err(status) => self.refuse(&parts, &asked, &Acting::new(caller, None), status),
        }
    }

    /// For whom a request of this caller counts, if for somebody else: he has its rights, and its share of what the server can do
    /// at once (the order of `k8s.io/apiserver/pkg/server/config.go`, `DefaultBuildHandlerChain`).
    ///
    /// # Errors
    /// Whom the caller may not impersonate, headers that name nobody, a store that cannot be read.
    pub(crate) async fn acts_for(
        &self,
        caller: &Caller,
        asked: &Asked,
        headers: &HeaderMap,
    ) -> Result<Option<Impersonated>, Status> {
        let attributes = asked.info.attributes(&asked.query);
        let (metrics, env) = (&self.inner.metrics.impersonation, &*self.inner.env);
        let impersonate = |authorizer: &Authorizer| {
            let attempt = metrics.start(env);
            let checked = |mode, allowed| attempt.checked(mode, allowed);
            let outcome = authn::impersonate(authorizer, caller, &attributes, headers, &checked);
            match &outcome {
                Ok(Some(other)) => attempt.end(Some(other.mode())),
                Err(authn::ImpersonationError::Forbidden { .. }) => attempt.end(None),
                Ok(None) | Err(authn::ImpersonationError::BadRequest(_)) => {}
            }
            outcome
        };
        let began = env.now();
        let outcome = self.inner.with_authorizer(impersonate).await?.map_err(|error| match error {
            authn::ImpersonationError::BadRequest(why) => Status::bad_request(why),
            authn::ImpersonationError::Forbidden { message, resource, group, name } => {
                let mut status = Status::forbidden(&group, &resource, &name, "");
                status.message = message;
                status
            }
        });
        if outcome.is_ok() {
            self.inner.metrics.filters.impersonation.took(env.now().duration_since(began).as_secs_f64());
        }
        outcome
    }

    /// Answers a request whose head is still of use.
    pub(crate) async fn answer(&self, parts: &request::Parts, asked: &Asked, body: Bytes, acting: Acting) -> Response {
        let Asked { query, info } = asked;
        let path_and_query = parts.uri.path_and_query().map_or("/", |both| both.as_str());
        let (metrics, env) = (&self.inner.metrics, &*self.inner.env);
        let audit = self.inner.audit.as_ref();
        let record = audit.and_then(|audit| audit.begin(&self.inner, &acting, info, parts));
        let notes = record.as_ref().map_or_else(Arc::default, Record::notes);
        let started = metrics.start(info, query.non_empty("dryRun").is_some(), env);
        let request = Request {
            server: self,
            method: &parts.method,
            info,
            path_and_query,
            query,
            headers: &parts.headers,
            body,
            known: &started.known,
        };
        let response = request.answer(acting, &notes).await.unwrap_or_else(Response::from);
        let elsewhere = notes.elsewhere();
        let response = match record {
            Some(record) => record.end(response),
            None => response,
        };
        metrics.end(started, response.status().as_u16(), response.body().size_bytes(), elsewhere, env);
        let response = yaml::lay_out(response, &parts.headers);
        if pretty::wanted(query, &parts.headers) { pretty::lay_out(response) } else { response }
    }

    /// Notes a request that is refused because nobody knows whose it is.
    pub(crate) fn note_unauthenticated(&self, parts: &request::Parts, asked: &Asked) {
        if let Some(record) = self.noted(parts, asked, &Acting::new(Caller::default(), None)) {
            record.end_unauthenticated(&parts.headers);
        }
    }

    /// Refuses a request before anybody looked at what it asks for, and notes it.
    pub(crate) fn refuse(&self, parts: &request::Parts, asked: &Asked, acting: &Acting, status: Status) -> Response {
        let response = Response::from(status);
        match self.noted(parts, asked, acting) {
            Some(record) => record.end(response),
            None => response,
        }
    }

    /// The audit's record of a request; none when it is not noted.
    fn noted(&self, parts: &request::Parts, asked: &Asked, acting: &Acting) -> Option<Record> {
        let audit = self.inner.audit.as_ref()?;
        audit.begin(&self.inner, acting, &asked.info, parts)
    }

    /// Who makes a request for a path with these headers, over a connection whose client certificate is
    /// `peer`'s.
    ///
    /// # Errors
    /// 401, or 503 when it cannot be found out.
    pub async fn authenticate(&self, peer: Option<&Caller>, path: &str, headers: &HeaderMap) -> Result<Caller, Status> {
        let began = self.inner.env.now();
        let outcome = self.authenticated(peer, path, headers).await;
        let elapsed_s = self.inner.env.now().duration_since(began).as_secs_f64();
        let (known, user) = match &outcome {
            Ok(caller) => (Known::Yes, caller.user.as_str()),
            Err(status) if status.code == 401 => (Known::No, ""),
            Err(_) => (Known::Error, ""),
        };
        self.inner.metrics.access.authenticated(known, user, elapsed_s);
        self.inner.metrics.filters.authentication.took(elapsed_s);
        outcome
    }

    async fn authenticated(&self, peer: Option<&Caller>, path: &str, headers: &HeaderMap) -> Result<Caller, Status> {
        let authenticator = self.inner.authenticator.as_ref().ok_or_else(Status::unauthorized)?;
        let now_unix_s = self.inner.env.now().as_second();
        if peer.is_none()
            && let Some(token) = authn::bearer_token(headers).map_err(refused)?
            && let Some(caller) = self.inner.token_caller(&token).await?
        {
            return Ok(caller);
        }
        let presented = authenticator.present(peer, path, headers, now_unix_s).map_err(refused)?;
        self.inner.confirmed(presented, now_unix_s).await.map_err(refused)
    }
}

/// The reply to credentials that are not accepted; why is for the log alone.
pub(crate) fn refused(error: authn::AuthnError) -> Status {
    match error {
        authn::AuthnError::Unavailable(why) => {
            Status::unavailable(format!("the credentials could not be checked: {why}"))
        }
        other => {
            tracing::debug!(why = %other, "a request is not authenticated");
            Status::unauthorized()
        }
    }
}

/// For whom a request counts.
#[derive(Clone, Debug)]
pub(crate) struct Acting {
    /// Whose rights and shares it has.
    pub caller: Caller,
    /// Who made it, if for somebody else.
    pub real: Option<Caller>,
    /// The verb that allowed that, where it is allowed for some requests only.
    pub constraint: Option<&'static str>,
}

impl Acting {
    /// Somebody who acts for another, or for himself.
    pub fn new(caller: Caller, other: Option<Impersonated>) -> Self {
        match other {
            Some(other) => Self { caller: other.caller, real: Some(caller), constraint: other.constraint },
            None => Self { caller, real: None, constraint: None },
        }
    }
}

/// A request on its way.
struct Request<'a> {
    server: &'a ApiServer,
    method: &'a Method,
    info: &'a RequestInfo,
    path_and_query: &'a str,
    query: &'a Query,
    headers: &'a HeaderMap,
    body: Bytes,
    /// Set when what the path names is found.
    known: &'a AtomicBool,
}

impl Request<'_> {
    async fn answer(self, acting: Acting, notes: &Notes) -> Result<Response, Status> {
        let Acting { caller, real, constraint } = acting;
        let inner = &*self.server.inner;
        self.authorize(&caller, notes).await?;
        // Upstream's router has no such paths either.
        if self.info.resource.as_ref().is_some_and(|resource| resource.is_ambiguous) {
            return Err(Status::no_such_path());
        }
        if let Some(remote) = self.remote(inner).await? {
            let id = notes.id(&*inner.env, self.headers);
            let asked = (self.method, self.path_and_query, self.headers, self.body);
            return aggregate::forward(inner, &remote, asked, &caller, &id).await;
        }
        let Some(resource) = &self.info.resource else {
            let Request { server, method, info, query, headers, body, .. } = self;
            return nonresource::answer(server, method, &info.path, headers, query, &body).await;
        };
        self.only_watches(resource)?;
        if let Some(api) = inner.local_api(&resource.group, &resource.version) {
            notes.sent_as_is(&self.body);
            let response = api
                .handle(LocalRequest {
                    server: self.server,
                    info: self.info,
                    resource,
                    method: self.method,
                    query: self.query,
                    headers: self.headers,
                    body: self.body,
                    caller,
                })
                .await;
            self.known.store(response.status() != StatusCode::NOT_FOUND, Ordering::Relaxed);
            return Ok(response);
        }
        self.resource(resource, (&caller, real.as_ref().zip(constraint)), notes).await
    }

    /// Refuses what is no watch and yet was authorized as one, since its path lies below `watch/`, whatever its method:
    /// no object can be written there, and none has anything below it (upstream has no such routes).
    fn only_watches(&self, resource: &ResourceRequest) -> Result<(), Status> {
        match self.info.verb {
            _ if self.server.inner.planted_writing_watches => Ok(()),
            "watch" if resource.subresource.is_some() => Err(Status::no_such_path()),
            "watch" if *self.method != Method::GET => Err(Status::method_not_allowed()),
            _ => Ok(()),
        }
    }

    /// The other server that the request is for, if it is for one.
    async fn remote(&self, inner: &Inner) -> Result<Option<Arc<Remote>>, Status> {
        let remotes = inner.remotes().await?;
        if remotes.is_empty() {
            return Ok(None);
        }
        let path = self.info.path.trim_end_matches('/');
        let place = path.strip_prefix("/openapi/v3").unwrap_or(path);
        let id = match (&self.info.resource, place.strip_prefix("/apis/").and_then(|rest| rest.split_once('/'))) {
            (Some(resource), _) => (resource.group.clone(), resource.version.clone()),
            (None, Some((group, version))) => (group.to_owned(), version.to_owned()),
            _ => return Ok(None),
        };
        Ok(remotes.get(&id).cloned())
    }

    async fn authorize(&self, caller: &Caller, notes: &Notes) -> Result<(), Status> {
        let attributes = self.info.attributes(self.query);
        let inner = &*self.server.inner;
        let began = inner.env.now();
        let decision = inner.with_authorizer(|authorizer| authorizer.authorize(caller, &attributes)).await;
        let elapsed_s = inner.env.now().duration_since(began).as_secs_f64();
        inner.metrics.access.authorized(decision.as_ref().ok().map(|decision| decision.allowed()), elapsed_s);
        let decision = decision?;
        notes.decided(decision.allowed(), decision.reason());
        if decision.allowed() {
            inner.metrics.filters.authorization.took(elapsed_s);
            return Ok(());
        }
        let mut status = Status::forbidden(attributes.group, attributes.resource, attributes.name, "");
        status.message = attributes.forbidden_message(caller, decision.reason());
        Err(status)
    }

    async fn resource(
        &self,
        request: &ResourceRequest,
        (caller, limited): (&Caller, Option<(&Caller, &'static str)>),
        audited: &Notes,
    ) -> Result<Response, Status> {
        let inner = &*self.server.inner;
        let catalog = inner.catalog().await?;
        let row = catalog.find(&request.group, &request.resource).ok_or_else(Status::no_such_path)?;
        let version_index = row
            .versions
            .iter()
            .position(|version| version.served && version.name == request.version)
            .ok_or_else(Status::no_such_path)?;
        if request.namespace.is_some() && !row.namespaced && !request.is_namespace {
            return Err(Status::no_such_path());
        }
        self.known.store(true, Ordering::Relaxed);
        let mut cx = Cx {
            server: inner,
            caller,
            limited,
            request,
            verb: self.info.verb,
            query: self.query,
            headers: self.headers,
            row: Arc::clone(row),
            version_index,
            warnings: row.versions[version_index].deprecation_warning.iter().map(ToString::to_string).collect(),
            notes: Mutex::default(),
            audited,
        };
        if row.versions[version_index].deprecation_warning.is_some() {
            // One that there is: any number of others could be named.
            let subresource = request.subresource.as_deref();
            let known = subresource.filter(|sub| row.versions[version_index].subresource(sub).is_some());
            let subresource = known.unwrap_or_default();
            inner.metrics.deprecated(row, &request.version, subresource);
            cx.annotate("k8s.io/deprecated", "true");
        }
        let result = dispatch::resource(self.server, &mut cx, self.info.verb, self.method, &self.body).await;
        let mut response = result.unwrap_or_else(Response::from);
        let notes = std::mem::take(&mut *cx.notes.lock().unwrap_or_else(PoisonError::into_inner));
        for warning in bounded(cx.warnings.iter().chain(&notes)) {
            let quoted = warning.replace('\\', "\\\\").replace('"', "\\\"");
            if let Ok(value) = HeaderValue::try_from(format!("299 - \"{quoted}\"").into_bytes()) {
                response.headers_mut().append(WARNING, value);
            }
        }
        Ok(response)
    }
}

/// Characters of all warnings of a reply, and those of one when there are more in all
/// (`k8s.io/apiserver/pkg/endpoints/filters/warning.go`).
const WARNINGS_CHARS: usize = 4096;
const WARNING_CHARS: usize = 256;

/// The warnings as they are told: each once, and no more than headers have room for. Those that no header can have are not told.
fn bounded<'a>(warnings: impl Iterator<Item = &'a String>) -> Vec<String> {
    let mut told = std::collections::BTreeSet::new();
    let can_be_told = |text: &&String| !text.is_empty() && !text.contains(char::is_control);
    let all: Vec<&String> = warnings.filter(can_be_told).filter(|text| told.insert(text.as_str())).collect();
    let is_too_much = all.iter().map(|text| text.chars().count()).sum::<usize>() > WARNINGS_CHARS;
    let most = if is_too_much { WARNING_CHARS } else { WARNINGS_CHARS };
    let cut = all.into_iter().map(|text| text.chars().take(most).collect::<String>());
    let mut left = WARNINGS_CHARS;
    cut.take_while(|text| {
        let fits = text.chars().count() <= left;
        left = left.saturating_sub(text.chars().count());
        fits
    })
    .collect()
}

impl Inner {
    /// What the API offers at this moment.
    pub(crate) async fn catalog(&self) -> Result<Arc<Catalog>, Status> {
        Ok(self.catalog.with(&*self.store, |fold| fold.catalog()).await?)
    }

    /// The catalog as it was when somebody asked for it last.
    pub(crate) fn catalog_at_hand(&self) -> Arc<Catalog> {
        self.catalog.at_hand(CatalogFold::catalog)
    }

    /// Converts objects of a resource.
    pub(crate) fn converter(&self, row: &Arc<ResourceInfo>) -> Converter {
        Converter {
            store: Arc::clone(&self.store),
            env: Arc::clone(&self.env),
            row: Arc::clone(row),
            metrics: self.metrics.conversion.clone(),
        }
    }

    /// The groups that other servers serve.
    pub(crate) async fn remotes(&self) -> Result<Arc<Remotes>, Status> {
        Ok(self.remotes.with(&*self.store, |fold| fold.remotes()).await?)
    }

    /// What users have added to admission.
    pub(crate) async fn hooks(&self) -> Result<Arc<Hooks>, Status> {
        Ok(self.hooks.with(&*self.store, |fold| fold.hooks()).await?)
    }

    /// Asks the authorizer, brought up to date. Others ask meanwhile: a policy's expressions may take their time.
    pub(crate) async fn with_authorizer<R>(&self, ask: impl FnOnce(&Authorizer) -> R) -> Result<R, Status> {
        let authorizer = self.authorizer.with(&*self.store, |fold| fold.authorizer.clone()).await?;
        Ok(ask(&authorizer))
    }

    /// Asks the priority levels, brought up to date.
    pub(crate) async fn with_flow<R>(&self, ask: impl FnOnce(&FlowFold) -> R) -> Result<R, Status> {
        Ok(self.flow.with(&*self.store, |fold| ask(fold)).await?)
    }

    /// The group served by code, if it is one.
    pub(crate) fn local_api(&self, group: &str, version: &str) -> Option<&Arc<dyn LocalApi>> {
        self.apis.iter().find(|api| api.group_versions().iter().any(|gv| gv.group == group && gv.version == version))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use carrack_store::MemStore;
    use futures::FutureExt as _;

    use super::{ApiServer, Authorizer, Config, WARNING_CHARS, WARNINGS_CHARS, bounded};
    use crate::env::tests::Still;

    #[test]
    fn who_asks_the_authorizer_keeps_nobody_waiting() {
        let server = ApiServer::new(Config::new(Arc::new(MemStore::default()), Arc::new(Still)));
        let meanwhile = |_: &Authorizer| server.inner.with_authorizer(|_| true).now_or_never();
        let told = server.inner.with_authorizer(meanwhile).now_or_never();
        assert!(matches!(told, Some(Ok(Some(Ok(true))))));
    }

    #[test]
    fn warnings_fit_in_headers() {
        let long = |letter: char, length: usize| letter.to_string().repeat(length);
        // What fits is told as it is, once.
        let few = [long('a', 1000), long('b', 1000), long('a', 1000)];
        assert_eq!(bounded(few.iter()), few[..2]);
        let odd = ["", "a\nb", "\u{85}", "é \"so\""].map(str::to_owned);
        assert_eq!(bounded(odd.iter()), odd[3..]);
        // Of too much, each is cut; then as many as fit are told.
        let many: Vec<String> = ('a'..='z').map(|letter| long(letter, 5000)).collect();
        let told = bounded(many.iter());
        assert_eq!(told.len(), WARNINGS_CHARS / WARNING_CHARS);
        assert!(told.iter().all(|text| text.len() == WARNING_CHARS), "{told:?}");
    }
}
