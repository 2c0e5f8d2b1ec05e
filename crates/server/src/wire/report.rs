//! SQL errors and notices as fields of the protocol.

use telesto_sql::{Error, Notice};

/// How bad an error is for the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The statement failed.
    Error,
    /// The connection ends.
    Fatal,
}

/// The fields of an ErrorResponse.
#[must_use]
pub fn error_fields(error: &Error, severity: Severity) -> Vec<(u8, String)> {
    let word = match severity {
        Severity::Error => "ERROR",
        Severity::Fatal => "FATAL",
    };
    let mut out = vec![
        (b'S', word.to_owned()),
        (b'V', word.to_owned()),
        (b'C', error.code().0.to_owned()),
        (b'M', error.message().to_owned()),
    ];
    let fields = error.fields();
    let optional = [
        (b'D', &fields.detail),
        (b'H', &fields.hint),
        (b'W', &fields.context),
        (b's', &fields.schema),
        (b't', &fields.table),
        (b'c', &fields.column),
        (b'd', &fields.data_type),
        (b'n', &fields.constraint),
    ];
    for (code, value) in optional {
        out.extend(value.as_ref().map(|value| (code, value.clone())));
    }
    out.extend(fields.routine.map(|routine| (b'R', routine.to_owned())));
    out.extend(fields.position.map(|position| (b'P', position.to_string())));
    out
}

/// The fields of a NoticeResponse.
#[must_use]
pub fn notice_fields(notice: &Notice) -> Vec<(u8, String)> {
    let mut out = vec![
        (b'S', notice.severity.to_owned()),
        (b'V', notice.severity.to_owned()),
        (b'C', notice.code.0.to_owned()),
        (b'M', notice.message.clone()),
    ];
    out.extend(notice.detail.as_ref().map(|detail| (b'D', detail.clone())));
    out.extend(notice.hint.as_ref().map(|hint| (b'H', hint.clone())));
    out
}
