//! The way of one certificate: asked for, issued, renewed when its signer says, or refused for good.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use crate::request::{Chain, How, Refusal, Request, Verdict};
use crate::{Bundle, CertificateError};

/// A request that is not to be seen so long after it was made has been deleted.
const GONE: SignedDuration = SignedDuration::from_mins(10);
/// So long after it should have been renewed a certificate is overdue.
const OVERDUE: SignedDuration = SignedDuration::from_mins(10);
/// Renewals of a node are spread over so much.
const SPREAD: SignedDuration = SignedDuration::from_mins(5);
/// How soon a renewal that could not be asked for is tried again.
const RETRY: SignedDuration = SignedDuration::from_secs(10);

/// A request that its signer has not decided yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) name: String,
    pub(crate) key: Arc<str>,
    pub(crate) gone_at: Timestamp,
}

impl Asked {
    pub(crate) fn new(name: String, key: Arc<str>, now: Timestamp, share: f64) -> Self {
        let gone_at = later(later(now, GONE), spread(share));
        Self { name, key, gone_at }
    }
}

/// What a pod has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) key: Arc<str>,
    pub(crate) chain: Arc<str>,
    pub(crate) renew_at: Timestamp,
    pub(crate) expires: Timestamp,
    /// What was told of it: that it is overdue, that it has expired.
    pub(crate) told: [bool; 2],
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Course {
    #[default]
    New,
    Asked(Asked),
    Issued(Held),
    Renewing(Held, Asked),
    Refused(Refusal),
}

/// Something to tell the users of the pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct News {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

impl Course {
    /// What has become of it, by the requests that are known.
    pub(crate) fn look(
        self,
        namespace: &str,
        known: Option<&[Arc<Request>]>,
        now: Timestamp,
        share: f64,
    ) -> (Self, Vec<News>) {
        let (mut course, mut news) = match (self.waits_for(), known) {
            (Some(asked), Some(known)) => {
                let found = find(known, namespace, &asked.name);
                let gone = found.is_none() && now > asked.gone_at;
                match found.and_then(Request::verdict) {
                    Some(verdict) => self.decided(namespace, verdict, share),
                    None if gone => (self.unasked(), Vec::new()),
                    None => (self, Vec::new()),
                }
            }
            _ => (self, Vec::new()),
        };
        news.extend(course.warnings(now));
        (course, news)
    }

    pub(crate) fn waits_for(&self) -> Option<&Asked> {
        match self {
            Course::Asked(asked) | Course::Renewing(_, asked) => Some(asked),
            _ => None,
        }
    }

    fn decided(self, namespace: &str, verdict: Verdict, share: f64) -> (Self, Vec<News>) {
        let (Course::Asked(asked) | Course::Renewing(_, asked)) = self else {
            return (self, Vec::new());
        };
        match verdict {
            Verdict::Issued(chain) => (Course::Issued(held(asked.key, chain, share)), Vec::new()),
            Verdict::Refused(refusal) => {
                let news = refusal.news(&format!("{namespace}/{}", asked.name));
                (Course::Refused(refusal), vec![news])
            }
        }
    }

    /// The request has gone.
    fn unasked(self) -> Self {
        match self {
            Course::Asked(_) => Course::New,
            Course::Renewing(held, _) => Course::Issued(held),
            other => other,
        }
    }

    fn warnings(&mut self, now: Timestamp) -> Vec<News> {
        let (Course::Issued(held) | Course::Renewing(held, _)) = self else {
            return Vec::new();
        };
        let overdue = (
            "CertificateOverdueForRefresh",
            "PodCertificate refresh overdue",
        );
        let expired = ("CertificateExpired", "PodCertificate expired");
        let all = [(held.overdue_at(), overdue), (held.expires, expired)];
        let mut news = Vec::new();
        for (told, (at, (reason, message))) in held.told.iter_mut().zip(all) {
            if now > at && !*told {
                *told = true;
                let message = message.to_owned();
                news.push(News { reason, message });
            }
        }
        news
    }

    /// Whether it is time to ask for a certificate.
    pub(crate) fn asks(&self, now: Timestamp) -> bool {
        match self {
            Course::New => true,
            Course::Issued(held) => now >= held.renew_at,
            Course::Asked(_) | Course::Renewing(..) | Course::Refused(_) => false,
        }
    }

    pub(crate) fn asked(self, asked: Asked) -> Self {
        match self {
            Course::Issued(held) | Course::Renewing(held, _) => Course::Renewing(held, asked),
            _ => Course::Asked(asked),
        }
    }

    /// What the pod is to have now, and when to look again.
    pub(crate) fn bundle(&self, now: Timestamp) -> Result<Bundle, CertificateError> {
        let (held, next) = match self {
            Course::New | Course::Asked(_) => return Err(CertificateError::Waiting),
            Course::Refused(refusal) => return Err(refusal.error()),
            Course::Issued(held) => (held, vec![held.renew_at]),
            Course::Renewing(held, asked) => {
                (held, vec![held.overdue_at(), held.expires, asked.gone_at])
            }
        };
        let next = next.into_iter().filter(|at| *at > now).min();
        Ok(Bundle {
            key: held.key.clone(),
            chain: held.chain.clone(),
            look_at: next.unwrap_or_else(|| later(now, RETRY)),
        })
    }

    /// As it is counted.
    pub(crate) fn state(&self, now: Timestamp) -> &'static str {
        match self {
            Course::New | Course::Asked(_) => "not_yet_issued",
            Course::Refused(Refusal { how, .. }) => how.state(),
            Course::Issued(held) | Course::Renewing(held, _) if now > held.expires => "expired",
            Course::Issued(held) | Course::Renewing(held, _) if now > held.overdue_at() => {
                "overdue_for_refresh"
            }
            Course::Issued(_) | Course::Renewing(..) => "fresh",
        }
    }
}

impl Held {
    fn overdue_at(&self) -> Timestamp {
        later(self.renew_at, OVERDUE)
    }
}

impl How {
    fn state(self) -> &'static str {
        match self {
            How::Denied => "denied",
            How::Failed => "failed",
        }
    }
}

impl Refusal {
    fn news(&self, request: &str) -> News {
        let Self {
            how,
            reason,
            message,
        } = self;
        let (reason_told, what) = match how {
            How::Denied => ("Denied", "was denied"),
            How::Failed => ("Failed", "failed"),
        };
        News {
            reason: reason_told,
            message: format!(
                "PodCertificateRequest {request} {what}, reason={reason:?}, message={message:?}"
            ),
        }
    }

    fn error(&self) -> CertificateError {
        CertificateError::Refused {
            what: self.how.state(),
            reason: self.reason.clone(),
            message: self.message.clone(),
        }
    }
}

pub(crate) fn find<'a>(
    known: &'a [Arc<Request>],
    namespace: &str,
    name: &str,
) -> Option<&'a Request> {
    let is_it = |r: &&Arc<Request>| r.metadata.namespace == namespace && r.metadata.name == name;
    known.iter().find(is_it).map(|request| &**request)
}

fn held(key: Arc<str>, chain: Chain, share: f64) -> Held {
    Held {
        key,
        chain: chain.text.into(),
        renew_at: later(chain.begin_refresh_at, spread(share)),
        expires: chain.not_after,
        told: [false; 2],
    }
}

/// A part of the spread; `share` is from 0 to 1.
fn spread(share: f64) -> SignedDuration {
    SPREAD.mul_f64(share.clamp(0.0, 1.0))
}

fn later(at: Timestamp, by: SignedDuration) -> Timestamp {
    at.saturating_add(by).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests;
