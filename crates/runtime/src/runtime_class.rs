//! Runtime classes: the names pods know handlers of the runtime by.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::node::v1::RuntimeClass;
use tokio::sync::{Notify, watch};

/// How long a pod waits for the first list of classes.
const PATIENCE: Duration = Duration::from_secs(10);

/// The classes the API server has; `None` until it has told.
type ClassList = Option<Vec<Arc<RuntimeClass>>>;

#[derive(Clone, Debug, Default)]
pub enum RuntimeClasses {
    /// There is nobody who knows classes: all pods get the runtime's default handler.
    #[default]
    Ignored,
    Known {
        list: watch::Receiver<ClassList>,
        wanted: Arc<Notify>,
    },
}

/// Who tells the classes, once somebody wants to know: most nodes never do.
pub struct ClassTeller {
    pub list: watch::Sender<ClassList>,
    wanted: Arc<Notify>,
}

impl ClassTeller {
    /// Until a pod has a class.
    pub async fn wanted(&self) {
        self.wanted.notified().await;
    }

    pub fn listener(&self) -> RuntimeClasses {
        RuntimeClasses::Known {
            list: self.list.subscribe(),
            wanted: self.wanted.clone(),
        }
    }
}

impl Default for ClassTeller {
    fn default() -> Self {
        Self {
            list: watch::Sender::new(None),
            wanted: Arc::default(),
        }
    }
}

impl RuntimeClasses {
    /// The handler of a class; the default one without a class.
    pub(crate) async fn handler(&self, class: Option<&str>) -> Result<String, String> {
        let (Some(name), Self::Known { list, wanted }) = (class.filter(|c| !c.is_empty()), self)
        else {
            return Ok(String::new());
        };
        wanted.notify_one();
        let mut list = list.clone();
        let told = tokio::time::timeout(PATIENCE, list.wait_for(Option::is_some)).await;
        let classes = match &told {
            Ok(Ok(classes)) => classes.as_deref().unwrap_or_default(),
            _ => {
                return Err(format!(
                    "failed to lookup RuntimeClass {name}: the API server has not told its classes yet"
                ));
            }
        };
        let found = handler_of(name, classes);
        found.ok_or_else(|| format!("runtimeclass.node.k8s.io {name:?} not found"))
    }

    /// The same of what has been told by now. Whoever has not asked for classes before does so by this.
    pub(crate) fn known(&self, class: Option<&str>) -> Option<String> {
        let (Some(name), Self::Known { list, wanted }) = (class.filter(|c| !c.is_empty()), self)
        else {
            return Some(String::new());
        };
        wanted.notify_one();
        handler_of(name, list.borrow().as_deref()?)
    }
}

fn handler_of(class: &str, classes: &[Arc<RuntimeClass>]) -> Option<String> {
    let mut classes = classes.iter();
    let found = classes.find(|c| c.metadata.name.as_deref() == Some(class))?;
    Some(found.handler.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn classes_have_handlers() {
        let class = |name: &str, handler: &str| {
            let json = serde_json::json!({"metadata": {"name": name}, "handler": handler});
            Arc::new(serde_json::from_value::<RuntimeClass>(json).unwrap())
        };
        let teller = ClassTeller::default();
        let known = teller.listener();
        assert_eq!(known.handler(None).await, Ok(String::new()));
        assert_eq!(known.handler(Some("")).await, Ok(String::new()));
        let nobody = tokio::time::timeout(PATIENCE, teller.wanted()).await;
        assert!(nobody.is_err(), "nobody has asked for a class");
        let early = known.handler(Some("safe")).await.unwrap_err();
        assert!(
            early.starts_with("failed to lookup RuntimeClass safe: "),
            "{early}"
        );
        let at_once = |class| known.known(class);
        assert_eq!(at_once(None), Some(String::new()));
        assert_eq!(at_once(Some("safe")), None);
        let asked = known.handler(Some("safe"));
        let told = async {
            teller.wanted().await;
            teller.list.send_replace(Some(vec![class("safe", "kata")]))
        };
        assert_eq!(tokio::join!(asked, told).0, Ok("kata".into()));
        assert_eq!(at_once(Some("safe")), Some("kata".into()));
        assert_eq!(at_once(Some("other")), None);
        let ignored = RuntimeClasses::Ignored.known(Some("safe"));
        assert_eq!(ignored, Some(String::new()));
        assert_eq!(
            known.handler(Some("other")).await,
            Err("runtimeclass.node.k8s.io \"other\" not found".into())
        );
        assert_eq!(
            RuntimeClasses::Ignored.handler(Some("safe")).await,
            Ok(String::new())
        );
    }
}
