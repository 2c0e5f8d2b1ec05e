"""What the suite may ask for: everything PostgreSQL 15 has, so that a feature that is missing fails and is listed."""

from sqlalchemy import text
from sqlalchemy.testing import exclusions
from sqlalchemy.testing.requirements import SuiteRequirements

# What SQLAlchemy leaves closed until a dialect says that it has it.
POSTGRESQL_HAS = """
    aggregate_order_by array_type autocommit boolean_col_expressions check_constraint_reflection comment_reflection
    column_collation_reflection
    comment_reflection_full_unicode computed_columns_default_persisted computed_columns_reflect_persisted
    computed_columns_stored constraint_comment_reflection create_or_replace_view create_table_as create_temp_table_as
    cross_schema_fk_reflection ctes ctes_on_dml ctes_with_update_delete ctes_with_values date_historic datetime_historic
    datetime_interval datetime_literals datetime_timezone datetime_timezone_historic default_schema_name_switch
    deferrable_fks delete_from except_ expression_server_defaults fetch_expression fetch_first fetch_no_order_by
    fetch_offset_with_options fetch_ties fk_constraint_option_reflection_ondelete_noaction
    fk_constraint_option_reflection_ondelete_restrict fk_constraint_option_reflection_onupdate_restrict
    float_or_double_precision_behaves_generically foreign_key_constraint_name_reflection
    foreign_key_constraint_option_reflection_ondelete foreign_key_constraint_option_reflection_onupdate
    has_temp_table identity_columns identity_columns_standard implicit_default_schema index_ddl_if_exists
    index_reflects_included_columns indexes_check_column_order indexes_with_expressions infinity_floats
    inline_check_constraint_reflection intersect isolation_level json_type legacy_unconditional_json_extract
   
    mod_operator_as_percent_sign nullsordering order_by_label_with_expression percent_schema_names
    precision_numerics_enotation_small precision_numerics_many_significant_digits
    precision_numerics_retains_significant_digits reflect_indexes_with_expressions reflect_table_options reflect_tables_no_columns
    reflects_pk_names regexp_match regexp_replace repeated_column_foreign_keys savepoints schema_create_delete
    server_defaults skip_autocommit_rollback supports_bitwise_and supports_bitwise_not supports_bitwise_or
    supports_bitwise_shift supports_bitwise_xor supports_distinct_on table_ddl_if_exists table_value_constructor
    temp_table_comment_reflection temp_table_names temporary_views time_timezone timestamp_microseconds tuple_in
    unicode_ddl unique_constraints_reflect_as_index update_from uuid_data_type views window_functions window_range
    window_range_non_numeric window_range_numeric
""".split()


def is_telesto(config):
    with config.db.connect() as connection:
        return "Telesto" in connection.scalar(text("SELECT version()"))


class Requirements(SuiteRequirements):
    @property
    def computed_columns(self):
        return exclusions.warns_if(
            ["postgresql"], r".*is being created as 'STORED' since", assert_=False
        )

    @property
    def materialized_views(self):
        # Asked for by what sets up most of the reflection tests, which then run without such views.
        return exclusions.skip_if(is_telesto, "Telesto has no materialized views")

    def get_order_by_collation(self, config):
        return "POSIX"

    def get_isolation_levels(self, config):
        with config.db.connect() as connection:
            default = connection.scalar(text("SHOW default_transaction_isolation"))
        supported = sorted([*config.db.dialect._isolation_lookup, "AUTOCOMMIT"])
        return {"default": default.upper(), "supported": supported}


for name in POSTGRESQL_HAS:
    assert hasattr(SuiteRequirements, name), f"SQLAlchemy knows no requirement {name}"
    setattr(Requirements, name, property(lambda self: exclusions.open()))
