//! What can be wrong with a node's configuration.

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodeError {
    #[error("{field}: {name}: {text:?} is no amount")]
    Amount {
        field: &'static str,
        name: String,
        text: String,
    },
}

impl NodeError {
    pub(crate) fn amount(field: &'static str, name: &str, text: &str) -> Self {
        Self::Amount {
            field,
            name: name.to_owned(),
            text: text.to_owned(),
        }
    }
}
