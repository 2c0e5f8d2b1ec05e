//! The error type of this crate and the one SQLSTATE table.
//!
//! # Invariants
//! - Codes and message texts are PostgreSQL 15's wherever PostgreSQL has the same error.
//! - An error that a retry may cure carries the conflict it came from, so that the session can
//!   re-execute (`session::transaction`, `session::conflict`).

use std::fmt;

use bytes::Bytes;
use telesto_common::{RegionId, TxnId};

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A five-character SQLSTATE.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SqlState(pub &'static str);

impl fmt::Debug for SqlState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl fmt::Display for SqlState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

macro_rules! states {
    ($($(#[$doc:meta])* $name:ident = $code:literal;)*) => {
        impl SqlState {
            $($(#[$doc])* pub const $name: Self = Self($code);)*

            /// The one with this code, if it is known here.
            #[must_use]
            pub fn of_code(code: &str) -> Option<Self> {
                match code {
                    $($code => Some(Self($code)),)*
                    _ => None,
                }
            }
        }
    };
}

states! {
    /// successful_completion
    SUCCESS = "00000";
    /// warning
    WARNING = "01000";
    /// warning_privilege_not_revoked
    PRIVILEGE_NOT_REVOKED = "01006";
    /// warning_privilege_not_granted
    PRIVILEGE_NOT_GRANTED = "01007";
    /// too_many_connections
    TOO_MANY_CONNECTIONS = "53300";
    /// invalid_grantor
    INVALID_GRANTOR = "0L000";
    /// invalid_grant_operation
    INVALID_GRANT_OPERATION = "0LP01";
    /// connection_failure
    CONNECTION_FAILURE = "08006";
    /// transaction_resolution_unknown
    TRANSACTION_RESOLUTION_UNKNOWN = "08007";
    /// protocol_violation
    PROTOCOL_VIOLATION = "08P01";
    /// feature_not_supported
    FEATURE_NOT_SUPPORTED = "0A000";
    /// cardinality_violation
    CARDINALITY_VIOLATION = "21000";
    /// data_exception
    DATA_EXCEPTION = "22000";
    /// string_data_right_truncation
    STRING_RIGHT_TRUNCATION = "22001";
    /// numeric_value_out_of_range
    NUMERIC_OUT_OF_RANGE = "22003";
    /// null_value_not_allowed
    NULL_VALUE_NOT_ALLOWED = "22004";
    /// invalid_datetime_format
    INVALID_DATETIME_FORMAT = "22007";
    /// datetime_field_overflow
    DATETIME_FIELD_OVERFLOW = "22008";
    /// invalid_time_zone_displacement_value
    INVALID_TIME_ZONE = "22009";
    /// substring_error
    SUBSTRING_ERROR = "22011";
    /// A bit string is not as long as its type or its partner.
    STRING_LENGTH_MISMATCH = "22026";
    /// division_by_zero
    DIVISION_BY_ZERO = "22012";
    /// interval_field_overflow
    INTERVAL_FIELD_OVERFLOW = "22015";
    /// invalid_argument_for_logarithm
    INVALID_ARGUMENT_FOR_LOG = "2201E";
    /// invalid_argument_for_power_function
    INVALID_ARGUMENT_FOR_POWER = "2201F";
    /// invalid_row_count_in_limit_clause
    INVALID_ROW_COUNT_IN_LIMIT = "2201W";
    /// invalid_row_count_in_result_offset_clause
    INVALID_ROW_COUNT_IN_OFFSET = "2201X";
    /// character_not_in_repertoire
    CHARACTER_NOT_IN_REPERTOIRE = "22021";
    /// invalid_parameter_value
    INVALID_PARAMETER_VALUE = "22023";
    /// invalid_escape_sequence
    INVALID_ESCAPE_SEQUENCE = "22025";
    /// invalid_regular_expression
    INVALID_REGULAR_EXPRESSION = "2201B";
    /// array_subscript_error
    ARRAY_SUBSCRIPT_ERROR = "2202E";
    /// floating_point_exception
    FLOATING_POINT_EXCEPTION = "22P01";
    /// invalid_text_representation
    INVALID_TEXT_REPRESENTATION = "22P02";
    /// invalid_binary_representation
    INVALID_BINARY_REPRESENTATION = "22P03";
    /// bad_copy_file_format
    BAD_COPY_FILE_FORMAT = "22P04";
    /// untranslatable_character
    UNTRANSLATABLE_CHARACTER = "22P05";
    /// sequence_generator_limit_exceeded
    SEQUENCE_LIMIT_EXCEEDED = "2200H";
    /// restrict_violation
    RESTRICT_VIOLATION = "23001";
    /// not_null_violation
    NOT_NULL_VIOLATION = "23502";
    /// foreign_key_violation
    FOREIGN_KEY_VIOLATION = "23503";
    /// unique_violation
    UNIQUE_VIOLATION = "23505";
    /// check_violation
    CHECK_VIOLATION = "23514";
    /// active_sql_transaction
    ACTIVE_SQL_TRANSACTION = "25001";
    /// read_only_sql_transaction
    READ_ONLY_TRANSACTION = "25006";
    /// no_active_sql_transaction
    NO_ACTIVE_SQL_TRANSACTION = "25P01";
    /// in_failed_sql_transaction
    IN_FAILED_TRANSACTION = "25P02";
    /// invalid_sql_statement_name
    INVALID_STATEMENT_NAME = "26000";
    /// invalid_authorization_specification
    INVALID_AUTHORIZATION = "28000";
    /// invalid_password
    INVALID_PASSWORD = "28P01";
    /// dependent_objects_still_exist
    DEPENDENT_OBJECTS_STILL_EXIST = "2BP01";
    /// invalid_savepoint_specification
    INVALID_SAVEPOINT = "3B001";
    /// invalid_catalog_name
    INVALID_CATALOG_NAME = "3D000";
    /// invalid_cursor_state
    INVALID_CURSOR_STATE = "24000";
    /// invalid_cursor_name
    INVALID_CURSOR_NAME = "34000";
    /// invalid_schema_name
    INVALID_SCHEMA_NAME = "3F000";
    /// serialization_failure
    SERIALIZATION_FAILURE = "40001";
    /// deadlock_detected
    DEADLOCK_DETECTED = "40P01";
    /// syntax_error
    SYNTAX_ERROR = "42601";
    /// insufficient_privilege
    INSUFFICIENT_PRIVILEGE = "42501";
    /// with_check_option_violation
    WITH_CHECK_OPTION_VIOLATION = "44000";
    /// cannot_coerce
    CANNOT_COERCE = "42846";
    /// grouping_error
    GROUPING_ERROR = "42803";
    /// windowing_error
    WINDOWING_ERROR = "42P20";
    /// invalid_foreign_key
    INVALID_FOREIGN_KEY = "42830";
    /// invalid_name
    INVALID_NAME = "42602";
    /// name_too_long
    NAME_TOO_LONG = "42622";
    /// reserved_name
    RESERVED_NAME = "42939";
    /// datatype_mismatch
    DATATYPE_MISMATCH = "42804";
    /// indeterminate_datatype
    INDETERMINATE_DATATYPE = "42P18";
    /// wrong_object_type
    WRONG_OBJECT_TYPE = "42809";
    /// generated_always
    GENERATED_ALWAYS = "428C9";
    /// undefined_column
    UNDEFINED_COLUMN = "42703";
    /// undefined_function
    UNDEFINED_FUNCTION = "42883";
    /// undefined_table
    UNDEFINED_TABLE = "42P01";
    /// undefined_parameter
    UNDEFINED_PARAMETER = "42P02";
    /// undefined_object
    UNDEFINED_OBJECT = "42704";
    /// duplicate_column
    DUPLICATE_COLUMN = "42701";
    /// duplicate_cursor
    DUPLICATE_CURSOR = "42P03";
    /// duplicate_database
    DUPLICATE_DATABASE = "42P04";
    /// duplicate_prepared_statement
    DUPLICATE_PREPARED_STATEMENT = "42P05";
    /// duplicate_schema
    DUPLICATE_SCHEMA = "42P06";
    /// duplicate_table
    DUPLICATE_TABLE = "42P07";
    /// duplicate_alias
    DUPLICATE_ALIAS = "42712";
    /// invalid_recursion
    INVALID_RECURSION = "42P19";
    /// duplicate_object
    DUPLICATE_OBJECT = "42710";
    /// ambiguous_column
    AMBIGUOUS_COLUMN = "42702";
    /// ambiguous_function
    AMBIGUOUS_FUNCTION = "42725";
    /// A parameter of two types.
    AMBIGUOUS_PARAMETER = "42P08";
    /// invalid_column_reference
    INVALID_COLUMN_REFERENCE = "42P10";
    /// invalid_column_definition
    INVALID_COLUMN_DEFINITION = "42611";
    /// invalid_table_definition
    INVALID_TABLE_DEFINITION = "42P16";
    /// collation_mismatch
    COLLATION_MISMATCH = "42P21";
    /// invalid_object_definition
    INVALID_OBJECT_DEFINITION = "42P17";
    /// invalid_schema_definition
    INVALID_SCHEMA_DEFINITION = "42P15";
    /// disk_full
    DISK_FULL = "53100";
    /// out_of_memory
    OUT_OF_MEMORY = "53200";
    /// Configuration limit exceeded: a spend cap
    CONFIGURATION_LIMIT_EXCEEDED = "53400";
    /// program_limit_exceeded
    PROGRAM_LIMIT_EXCEEDED = "54000";
    /// too_many_columns
    TOO_MANY_COLUMNS = "54011";
    /// statement_too_complex
    STATEMENT_TOO_COMPLEX = "54001";
    /// invalid_cursor_definition
    INVALID_CURSOR_DEFINITION = "42P11";
    /// object_not_in_prerequisite_state
    OBJECT_NOT_IN_PREREQUISITE_STATE = "55000";
    /// object_in_use
    OBJECT_IN_USE = "55006";
    /// lock_not_available
    LOCK_NOT_AVAILABLE = "55P03";
    /// cant_change_runtime_param
    CANT_CHANGE_RUNTIME_PARAM = "55P02";
    /// query_canceled
    QUERY_CANCELED = "57014";
    /// admin_shutdown
    ADMIN_SHUTDOWN = "57P01";
    /// cannot_connect_now
    CANNOT_CONNECT_NOW = "57P03";
    /// io_error
    IO_ERROR = "58030";
    /// snapshot_too_old
    SNAPSHOT_TOO_OLD = "72000";
    /// internal_error
    INTERNAL_ERROR = "XX000";
    /// data_corrupted
    DATA_CORRUPTED = "XX001";
}

/// The conflict behind a serialization failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The transaction that failed.
    pub txn: TxnId,
    /// The transaction that committed first.
    pub other: TxnId,
    /// The key both touched.
    pub key: Bytes,
    /// What was to be added to the row at `key` was refused: nobody need have been in the way, and
    /// `other` is `txn`.
    pub refused: bool,
}

/// What PostgreSQL's ErrorResponse carries beside code and message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields {
    /// Secondary message.
    pub detail: Option<String>,
    /// What to do.
    pub hint: Option<String>,
    /// Where it happened (`COPY t, line 3`).
    pub context: Option<String>,
    /// 1-based character position in the statement.
    pub position: Option<u32>,
    /// Schema of the table concerned.
    pub schema: Option<String>,
    /// Table concerned.
    pub table: Option<String>,
    /// Column concerned.
    pub column: Option<String>,
    /// Data type concerned.
    pub data_type: Option<String>,
    /// Constraint violated.
    pub constraint: Option<String>,
    /// PostgreSQL's function that raises it, of an error by which drivers tell it from others of
    /// its code.
    pub routine: Option<&'static str>,
    /// Set when another transaction came first and the work may be executed again.
    pub conflict: Option<Conflict>,
    /// Set when something is not in this region, to be read here: the regions that have all of it.
    pub placed_in: Option<Vec<RegionId>>,
    /// Set when another region found that a constraint does not hold: the key, and whether
    /// something was to be there.
    pub unexpected: Option<(bytes::Bytes, bool)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Inner {
    code: SqlState,
    message: String,
    fields: Fields,
}

/// An SQL error: an SQLSTATE, a message and PostgreSQL's optional fields. Cheap to move.
#[derive(Clone, PartialEq, Eq)]
pub struct Error(Box<Inner>);

impl Error {
    /// An error with `code` and `message`.
    pub fn new(code: SqlState, message: impl Into<String>) -> Self {
        Self(Box::new(Inner { code, message: message.into(), fields: Fields::default() }))
    }

    /// Something PostgreSQL has and Telesto has not.
    pub fn unsupported(what: impl fmt::Display) -> Self {
        Self::new(SqlState::FEATURE_NOT_SUPPORTED, format!("{what} is not supported"))
            .hint("docs/sql.md lists what differs from PostgreSQL.")
    }

    /// A write, or a wish to write, of a session that was opened to read only.
    pub fn confined() -> Self {
        Self::new(SqlState::READ_ONLY_TRANSACTION, "this session was opened to read only")
            .hint("Open a session that may write.")
    }

    /// A bug in Telesto: a state that cannot be.
    pub fn internal(what: impl fmt::Display) -> Self {
        Self::new(SqlState::INTERNAL_ERROR, format!("internal error: {what}"))
            .hint("This is a bug in Telesto; please report it with the statement.")
    }

    /// Stored bytes that do not decode.
    pub fn corrupt(what: impl fmt::Display) -> Self {
        Self::new(SqlState::DATA_CORRUPTED, format!("stored data is damaged: {what}"))
            .hint("Restore from an earlier point in time or from a backup.")
    }

    /// A syntax error.
    pub fn syntax(message: impl Into<String>) -> Self {
        Self::new(SqlState::SYNTAX_ERROR, message)
    }

    /// The SQLSTATE.
    #[must_use]
    pub fn code(&self) -> SqlState {
        self.0.code
    }

    /// The primary message.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The optional fields.
    #[must_use]
    pub fn fields(&self) -> &Fields {
        &self.0.fields
    }

    /// The optional fields, to be set.
    pub fn fields_mut(&mut self) -> &mut Fields {
        &mut self.0.fields
    }

    /// The regions in which what failed can be run as it is, since they have what this one lacks;
    /// none: it did not fail for that.
    #[must_use]
    pub fn placed_in(&self) -> &[RegionId] {
        self.0.fields.placed_in.as_deref().unwrap_or_default()
    }

    /// Says in which regions it can be run.
    #[must_use]
    pub fn runs_in(mut self, regions: Vec<RegionId>) -> Self {
        self.0.fields.placed_in = Some(regions);
        self
    }

    /// The conflict to retry on, if this is one.
    #[must_use]
    pub fn conflict(&self) -> Option<&Conflict> {
        self.0.fields.conflict.as_ref()
    }

    /// Sets the detail.
    #[must_use]
    pub fn detail(mut self, detail: impl Into<String>) -> Self {
        self.0.fields.detail = Some(detail.into());
        self
    }

    /// Sets the detail, if there is one.
    #[must_use]
    pub fn detail_of(self, detail: Option<String>) -> Self {
        match detail {
            Some(detail) => self.detail(detail),
            None => self,
        }
    }

    /// Sets the data type concerned, with its schema.
    #[must_use]
    pub fn data_type(mut self, schema: impl Into<String>, name: impl Into<String>) -> Self {
        self.0.fields.schema = Some(schema.into());
        self.0.fields.data_type = Some(name.into());
        self
    }

    /// Sets the hint.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.0.fields.hint = Some(hint.into());
        self
    }

    /// Sets the context.
    #[must_use]
    pub fn context(mut self, context: impl Into<String>) -> Self {
        self.0.fields.context = Some(context.into());
        self
    }

    /// Sets the 1-based position in the statement.
    #[must_use]
    pub fn position(mut self, position: u32) -> Self {
        self.0.fields.position = Some(position);
        self
    }

    /// Names the table.
    #[must_use]
    pub fn table(mut self, schema: impl Into<String>, table: impl Into<String>) -> Self {
        self.0.fields.schema = Some(schema.into());
        self.0.fields.table = Some(table.into());
        self
    }

    /// Names the column.
    #[must_use]
    pub fn column(mut self, column: impl Into<String>) -> Self {
        self.0.fields.column = Some(column.into());
        self
    }

    /// Names the constraint.
    #[must_use]
    pub fn constraint(mut self, constraint: impl Into<String>) -> Self {
        self.0.fields.constraint = Some(constraint.into());
        self
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.0.code, self.0.message)?;
        if self.0.fields != Fields::default() {
            write!(f, " {:?}", self.0.fields)?;
        }
        Ok(())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl std::error::Error for Error {}

impl From<telesto_txn::Error> for Error {
    fn from(error: telesto_txn::Error) -> Self {
        use telesto_txn::Error as Txn;
        let message = error.to_string();
        match error {
            Txn::Conflict { txn, other, key, .. } => {
                let mut error = Self::new(
                    SqlState::SERIALIZATION_FAILURE,
                    "could not serialize access due to concurrent update",
                )
                .hint("The transaction might succeed if retried.");
                error.0.fields.conflict = Some(Conflict { txn, other, key, refused: false });
                error
            }
            Txn::NotAdded { txn, key, .. } => {
                let mut error = Self::new(SqlState::SERIALIZATION_FAILURE, message)
                    .hint("The transaction might succeed if retried.");
                error.0.fields.conflict = Some(Conflict { txn, other: txn, key, refused: true });
                error
            }
            Txn::SnapshotTooOld { .. } => Self::new(SqlState::SNAPSHOT_TOO_OLD, message),
            Txn::ReadOnly => Self::new(SqlState::READ_ONLY_TRANSACTION, message),
            Txn::Ended(_) => Self::new(SqlState::NO_ACTIVE_SQL_TRANSACTION, message),
            Txn::NoSavepoint => Self::new(SqlState::INVALID_SAVEPOINT, message),
            Txn::OutcomeUnknown { .. } => {
                Self::new(SqlState::TRANSACTION_RESOLUTION_UNKNOWN, message)
            }
            Txn::NotOwner { .. }
            | Txn::WrongShard(_)
            | Txn::Unavailable(_)
            | Txn::SessionAhead { .. } => Self::new(SqlState::CANNOT_CONNECT_NOW, message),
            Txn::Corrupt(_) => Self::new(SqlState::DATA_CORRUPTED, message),
            Txn::OutOfMemory(_) => Self::new(SqlState::OUT_OF_MEMORY, message),
            Txn::Elsewhere(_) => Self::new(SqlState::CONNECTION_FAILURE, message),
            Txn::Unexpected { key, there } => {
                let code = match there {
                    true => SqlState::FOREIGN_KEY_VIOLATION,
                    false => SqlState::UNIQUE_VIOLATION,
                };
                let mut error = Self::new(code, message);
                error.0.fields.unexpected = Some((key, there));
                error
            }
            Txn::Outgoing { mebibytes } => Self::new(
                SqlState::PROGRAM_LIMIT_EXCEEDED,
                format!("transaction writes more than {mebibytes} MiB of what another region has, too"),
            )
            .hint("A transaction comes to other regions whole. Write less in one transaction, as with COPY in parts; or load the table before it is placed in other regions: ALTER TABLE … SET (telesto.regions = …)."),
            Txn::TwoHomes(_) => Self::new(SqlState::FEATURE_NOT_SUPPORTED, message),
            Txn::NotPlaced(what) => {
                let mut error =
                    Self::new(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, message).hint(what.hint);
                error.0.fields.placed_in = Some(what.regions);
                error
            }
            Txn::TooLarge(_) => Self::new(SqlState::PROGRAM_LIMIT_EXCEEDED, message),
            Txn::LocalDisk(_) => Self::new(SqlState::DISK_FULL, message),
            Txn::ShuttingDown => Self::new(SqlState::ADMIN_SHUTDOWN, message),
        }
    }
}

impl From<telesto_common::Error> for Error {
    fn from(error: telesto_common::Error) -> Self {
        use telesto_common::Error as Common;
        let message = error.to_string();
        match error {
            Common::MalformedKey { .. } => Self::new(SqlState::DATA_CORRUPTED, message),
            Common::MalformedId { .. } => Self::new(SqlState::INVALID_TEXT_REPRESENTATION, message),
            Common::DeadlinePassed { .. } => Self::new(SqlState::QUERY_CANCELED, message),
            Common::MemoryExhausted { .. } => Self::new(SqlState::OUT_OF_MEMORY, message),
        }
    }
}
