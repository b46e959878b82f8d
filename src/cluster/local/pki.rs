//! The keys and certificates of one cluster, made anew for each and gone with it.
//!
//! Takes names and addresses, gives PEM files in a folder that only root can enter. Knows nothing
//! of who reads them.

use std::io;
use std::net::IpAddr;
use std::path::Path;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType, date_time_ymd,
};

use super::files::write_private;

/// Days before and after today for which certificates hold: clocks may differ a little, and no
/// cluster lives long.
const VALID_DAYS: (i32, i32) = (1, 365);

/// A certificate authority.
pub(super) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
}

/// Whom a certificate names.
pub(super) struct Subject<'a> {
    /// The user's name, or the server's.
    pub common_name: &'a str,
    /// The user's group.
    pub group: Option<&'a str>,
    /// What a server is reached by; none for clients.
    pub names: &'a [&'a str],
    /// The same, as addresses.
    pub addresses: &'a [IpAddr],
}

impl<'a> Subject<'a> {
    /// A client: its user name and group.
    pub(super) fn client(common_name: &'a str, group: Option<&'a str>) -> Self {
        Self { common_name, group, names: &[], addresses: &[] }
    }
}

impl Authority {
    /// A new authority.
    pub(super) fn new(name: &str) -> io::Result<Self> {
        let mut params = params(name)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate().map_err(io::Error::other)?;
        let certificate = params.self_signed(&key).map_err(io::Error::other)?.pem();
        Ok(Self { issuer: Issuer::new(params, key), certificate })
    }

    /// Writes the authority's certificate (never its key) to `DIR/NAME.crt`.
    pub(super) fn write(&self, dir: &Path, name: &str) -> io::Result<()> {
        write_private(&dir.join(format!("{name}.crt")), &self.certificate)
    }

    /// Issues a certificate for clients, and for servers where the subject has names or
    /// addresses; writes `DIR/NAME.crt` and `DIR/NAME.key`.
    pub(super) fn issue(&self, dir: &Path, name: &str, subject: &Subject) -> io::Result<()> {
        let mut params = params(subject.common_name)?;
        if let Some(group) = subject.group {
            params.distinguished_name.push(DnType::OrganizationName, group);
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        if !subject.names.is_empty() || !subject.addresses.is_empty() {
            params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
        }
        for name in subject.names {
            let name = (*name).try_into().map_err(io::Error::other)?;
            params.subject_alt_names.push(SanType::DnsName(name));
        }
        params.subject_alt_names.extend(subject.addresses.iter().map(|a| SanType::IpAddress(*a)));
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate().map_err(io::Error::other)?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(io::Error::other)?;
        write_private(&dir.join(format!("{name}.crt")), &certificate.pem())?;
        write_private(&dir.join(format!("{name}.key")), &key.serialize_pem())
    }
}

/// A key pair for service account tokens: `DIR/sa.key` and `DIR/sa.pub`.
pub(super) fn service_account_keys(dir: &Path) -> io::Result<()> {
    let key = KeyPair::generate().map_err(io::Error::other)?;
    write_private(&dir.join("sa.key"), &key.serialize_pem())?;
    write_private(&dir.join("sa.pub"), &key.public_key_pem())
}

fn params(common_name: &str) -> io::Result<CertificateParams> {
    let mut params = CertificateParams::new(Vec::new()).map_err(io::Error::other)?;
    params.distinguished_name.push(DnType::CommonName, common_name);
    let today = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).date();
    let day = |days: i32| {
        let date = today.saturating_add(jiff::Span::new().days(days));
        // month and day of a calendar date lie within 1..=12 and 1..=31
        date_time_ymd(date.year().into(), date.month() as u8, date.day() as u8)
    };
    params.not_before = day(-VALID_DAYS.0);
    params.not_after = day(VALID_DAYS.1);
    Ok(params)
}
