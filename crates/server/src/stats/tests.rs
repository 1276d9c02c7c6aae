use super::*;

/// Says what it was asked for.
pub(crate) struct Spoken {
    pub(crate) works: bool,
}

#[async_trait]
impl Statistics for Spoken {
    async fn summary(&self, only_cpu_and_memory: bool) -> Result<Vec<u8>, String> {
        match self.works {
            true => Ok(format!("{{\"only\":{only_cpu_and_memory}}}").into_bytes()),
            false => Err("out of order".into()),
        }
    }
    async fn resource_metrics(&self) -> String {
        "resource 1\n".into()
    }
    async fn cadvisor_metrics(&self) -> Pieces {
        Box::new(["cadvisor ".to_owned(), "1\n".to_owned()].into_iter())
    }
}

#[test]
fn what_asks_for_less() {
    let cases: [(&[(&str, &str)], bool); 5] = [
        (&[], false),
        (&[("only_cpu_and_memory", "true")], true),
        (&[("only_cpu_and_memory", "1")], false),
        (&[("other", "true")], false),
        (
            &[
                ("only_cpu_and_memory", "true"),
                ("only_cpu_and_memory", "true"),
            ],
            false,
        ),
    ];
    for (pairs, expected) in cases {
        let owned: Vec<(String, String)> = pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        assert_eq!(only_cpu_and_memory(&owned), expected, "{pairs:?}");
    }
}
