//! stub
use std::collections::BTreeMap;
#[allow(missing_docs)]
#[derive(serde::Serialize)]
pub struct Environment {
    pub fixed: BTreeMap<String, String>,
    pub warnings: Vec<String>,
    pub digest: String,
}
#[allow(missing_docs)]
pub async fn read(
    c: &dyn super::Cluster,
    _p: &str,
    _s: &crate::config::ClusterSpec,
) -> Result<Environment, super::ClusterError> {
    let f = c.facts().await?;
    Ok(Environment { fixed: f.fixed, warnings: f.warnings, digest: "stub".into() })
}
