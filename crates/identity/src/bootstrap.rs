//! How the node's life at the API server begins: with the kubeconfig there is, or by asking for a
//! certificate with the credentials of the bootstrap kubeconfig. Also the adoption of a pair that
//! stands in the kubeconfig itself, as kubeadm writes it.

use std::io;
use std::path::{Path, PathBuf};

use jiff::{SignedDuration, Timestamp};
use krablet_kube::kubeconfig::{Kubeconfig, KubeconfigError, Pem, User};
use krablet_linux::Files;

use crate::store::{PairFiles, Stored};
use crate::{CertStore, IdentityError, Pair, Validity};

const SIZE_LIMIT: usize = 4 << 20;
/// Issuers date certificates back by minutes, so the date of a pair says which one is newer only
/// beyond this.
const DATED_BACK: SignedDuration = SignedDuration::from_mins(10);

/// The kubeconfig the node is to use, as far as the decision goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Own {
    /// Each with words that name the file.
    Missing(String),
    Unusable(String),
    /// It reads well, but the certificate it has or names does not.
    Broken(String),
    /// Tokens, exec plugins and the like.
    NoCertificate,
    Certificate(Validity),
}

/// The bootstrap kubeconfig.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Spare {
    NotGiven,
    /// In words that name the file. That there is none is usual on a node that has joined.
    Unusable(String),
    There,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    UseExisting { warning: Option<String> },
    Bootstrap { why: String },
    Fail(String),
}

/// As the kubelet decides, with three differences: a valid certificate in the store makes up for an
/// expired or broken one in the kubeconfig; an expired certificate without a bootstrap kubeconfig that could be used
/// is still used, for the clock may be wrong, and static and remembered pods must run; and other credentials than
/// certificates are used if there is nothing to join with.
pub fn decide(own: &Own, stored: Option<Validity>, spare: &Spare, now: Timestamp) -> Decision {
    let alive = |v: &Validity| !v.is_expired(now);
    let stored = stored.filter(alive);
    let best = match own {
        Own::Certificate(validity) => stored.or(Some(*validity).filter(alive)),
        Own::Broken(_) => stored,
        Own::Missing(_) | Own::Unusable(_) | Own::NoCertificate => None,
    };
    if let Some(validity) = best {
        return use_existing(validity, now);
    }
    let why = match own {
        Own::Missing(why) | Own::Unusable(why) | Own::Broken(why) => why.clone(),
        Own::NoCertificate => "the kubeconfig holds no client certificate".to_owned(),
        Own::Certificate(v) => format!("the client certificate expired at {}", v.not_after),
    };
    match (spare, own) {
        (Spare::There, _) => Decision::Bootstrap { why },
        (_, Own::NoCertificate) => Decision::UseExisting { warning: None },
        (Spare::Unusable(spare), Own::Certificate(_)) => Decision::UseExisting {
            warning: Some(format!(
                "{why}, and it is {now} by this machine's clock; cannot join anew: {spare}"
            )),
        },
        (Spare::Unusable(spare), _) => Decision::Fail(format!("{why}; cannot join anew: {spare}")),
        (Spare::NotGiven, Own::Certificate(_)) => Decision::UseExisting {
            warning: Some(format!("{why}, and it is {now} by this machine's clock")),
        },
        (Spare::NotGiven, _) => Decision::Fail(format!("{why}; no bootstrap kubeconfig is given")),
    }
}

fn use_existing(validity: Validity, now: Timestamp) -> Decision {
    let from = validity.not_before;
    let warning = validity.is_not_yet(now).then(|| {
        format!(
            "the client certificate is valid only from {from}, but it is {now} by this machine's \
             clock, which may be wrong"
        )
    });
    Decision::UseExisting { warning }
}

/// Whether a pair that stands in the kubeconfig takes the place of the stored one.
pub fn should_adopt(stored: Option<Validity>, offered: Validity, now: Timestamp) -> bool {
    match stored {
        None => true,
        Some(_) if offered.is_expired(now) => false,
        Some(stored) if stored.is_expired(now) => true,
        Some(stored) => offered.not_before.duration_since(stored.not_before) > DATED_BACK,
    }
}

/// The flags that say where to begin.
#[derive(Clone, Debug)]
pub struct StartFiles {
    pub kubeconfig: PathBuf,
    pub bootstrap_kubeconfig: Option<PathBuf>,
}

/// How to begin.
#[derive(Debug)]
pub enum Start {
    /// With this kubeconfig. Without a pair it brings other credentials, and there is nothing to
    /// renew.
    Existing {
        kubeconfig: Kubeconfig,
        pair: Option<Pair>,
        /// The pair was adopted just now. Whoever made it may have given it more rights than a
        /// node needs, so it is replaced at once, as the kubelet does.
        renew_now: bool,
    },
    /// By joining with this bootstrap kubeconfig.
    Bootstrap { kubeconfig: Kubeconfig },
}

/// What is done about the certificate from here on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// A new one is asked for in time.
    Rotate,
    /// Somebody else replaces its files.
    Reread,
    /// It stands in the kubeconfig and stays as it is.
    Keep,
}

#[derive(Debug)]
pub struct Begun {
    pub start: Start,
    pub renewal: Renewal,
    /// The store as it has to be used from here on.
    pub store: CertStore,
}

/// Reads what there is and decides; adopts a pair that stands in the kubeconfig if certificates
/// are to be rotated. An error is final: nothing of it heals by itself.
pub async fn begin(
    paths: &StartFiles,
    store: CertStore,
    rotate: bool,
    now: Timestamp,
) -> Result<Begun, IdentityError> {
    let found = Found::read(store.files().as_ref(), &paths.kubeconfig).await;
    let store = store.with_named(found.named(), !rotate);
    let stored = store.load().await;
    if let Stored::Broken(why) = &stored {
        tracing::warn!("{why}; going on as if there were none");
    }
    let stored = stored.pair();
    let spare = match &paths.bootstrap_kubeconfig {
        Some(path) => Some(read_kubeconfig(store.files().as_ref(), path).await),
        None => None,
    };
    let spare_state = match &spare {
        None => Spare::NotGiven,
        Some(Ok(_)) => Spare::There,
        Some(Err(e)) => Spare::Unusable(e.to_string()),
    };
    let validity = stored.as_ref().map(Pair::validity);
    let decision = decide(&found.own, validity, &spare_state, now);
    match (decision, spare) {
        (Decision::UseExisting { warning }, _) => {
            if let Some(warning) = warning {
                tracing::warn!("{warning}");
            }
            found.settle(store, stored, rotate, now).await
        }
        (Decision::Bootstrap { why }, Some(Ok(kubeconfig))) => {
            tracing::info!("joining with the bootstrap kubeconfig: {why}");
            let renewal = match rotate {
                true => Renewal::Rotate,
                false => Renewal::Reread,
            };
            Ok(Begun {
                start: Start::Bootstrap { kubeconfig },
                renewal,
                store: store.with_named(None, false),
            })
        }
        (Decision::Bootstrap { why } | Decision::Fail(why), _) => {
            Err(IdentityError::NoBeginning(why))
        }
    }
}

/// Where the pair of a kubeconfig is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    /// In the kubeconfig itself, in part at least.
    Embedded,
    Named(PairFiles),
}

/// What the node's own kubeconfig brings.
struct Found {
    own: Own,
    kubeconfig: Option<Kubeconfig>,
    place: Option<Place>,
    pair: Option<Pair>,
}

impl Found {
    async fn read(files: &dyn Files, path: &Path) -> Self {
        let nothing = |own| Self {
            own,
            kubeconfig: None,
            place: None,
            pair: None,
        };
        let kubeconfig = match read_kubeconfig(files, path).await {
            Ok(kubeconfig) => kubeconfig,
            Err(e) if e.is_not_found() => return nothing(Own::Missing(e.to_string())),
            Err(e) => return nothing(Own::Unusable(e.to_string())),
        };
        let user = match kubeconfig.current() {
            Ok((_, user)) => user.clone(),
            Err(e) => return nothing(Own::Unusable(e.to_string())),
        };
        let mut found = nothing(Own::NoCertificate);
        found.kubeconfig = Some(kubeconfig);
        found.with_pair(files, user, path).await
    }

    async fn with_pair(mut self, files: &dyn Files, user: User, path: &Path) -> Self {
        let (Some(certificate), Some(key)) = (user.client_certificate, user.client_key) else {
            return self;
        };
        let read = async {
            let certificate = load(files, &certificate).await?;
            let key = load(files, &key).await?;
            Pair::from_pem(&certificate, &key)
        };
        match read.await {
            Ok(pair) => {
                self.own = Own::Certificate(pair.validity());
                self.pair = Some(pair);
            }
            Err(e) => {
                self.own = Own::Broken(format!("{}: client certificate: {e}", path.display()));
            }
        }
        self.place = Some(match (certificate, key) {
            (Pem::File(certificate), Pem::File(key)) => {
                Place::Named(PairFiles { certificate, key })
            }
            _ => Place::Embedded,
        });
        self
    }

    fn named(&self) -> Option<PairFiles> {
        match &self.place {
            Some(Place::Named(files)) => Some(files.clone()),
            Some(Place::Embedded) | None => None,
        }
    }

    /// The beginning with this kubeconfig.
    async fn settle(
        self,
        store: CertStore,
        stored: Option<Pair>,
        rotate: bool,
        now: Timestamp,
    ) -> Result<Begun, IdentityError> {
        let renewal = match &self.place {
            _ if rotate => Renewal::Rotate,
            Some(Place::Embedded) => Renewal::Keep,
            Some(Place::Named(_)) | None => Renewal::Reread,
        };
        let (pair, renew_now) = match (self.place, self.pair) {
            (None, _) => (None, false),
            (Some(_), None) => (stored, false),
            (Some(_), offered) if !rotate => (offered, false),
            (Some(place), Some(offered)) => adopt(&store, place, offered, stored, now).await,
        };
        let missing = || IdentityError::NoBeginning("there is no kubeconfig".into());
        let start = Start::Existing {
            kubeconfig: self.kubeconfig.ok_or_else(missing)?,
            pair,
            renew_now,
        };
        Ok(Begun {
            start,
            renewal,
            store,
        })
    }
}

/// The pair to begin with, and whether it is to be replaced at once.
async fn adopt(
    store: &CertStore,
    place: Place,
    offered: Pair,
    stored: Option<Pair>,
    now: Timestamp,
) -> (Option<Pair>, bool) {
    let validity = stored.as_ref().map(Pair::validity);
    let wanted = match place {
        Place::Embedded => should_adopt(validity, offered.validity(), now),
        // The store has read these files if it has nothing else; they count again when what it
        // has is worth nothing any more.
        Place::Named(_) => {
            validity.is_some_and(|v| v.is_expired(now)) && !offered.validity().is_expired(now)
        }
    };
    if !wanted {
        return (stored, false);
    }
    match store.update(&offered, now).await {
        Ok(()) => tracing::info!("the client certificate of the kubeconfig is rotated from now on"),
        // It works all the same; the one that replaces it will be stored.
        Err(error) => tracing::warn!(%error, "cannot store the kubeconfig's client certificate"),
    }
    (Some(offered), place == Place::Embedded)
}

async fn read_kubeconfig(files: &dyn Files, path: &Path) -> Result<Kubeconfig, KubeconfigError> {
    let bytes = files.read(path, SIZE_LIMIT).await;
    let bytes = bytes.map_err(|source| KubeconfigError::Read {
        path: path.display().to_string(),
        source: bare(source),
    })?;
    let kubeconfig = Kubeconfig::parse(path, &bytes)?;
    kubeconfig.current()?;
    Ok(kubeconfig)
}

/// Without the path, which is told anyway.
fn bare(error: io::Error) -> io::Error {
    let system = error.get_ref().and_then(|inner| inner.source());
    match system.map(ToString::to_string) {
        Some(text) => io::Error::new(error.kind(), text),
        None => error,
    }
}

async fn load(files: &dyn Files, pem: &Pem) -> Result<Vec<u8>, IdentityError> {
    match pem {
        Pem::Data(data) => Ok(data.clone()),
        Pem::File(path) => Ok(files.read(path, SIZE_LIMIT).await?),
    }
}
