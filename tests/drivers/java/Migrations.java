import java.nio.file.*;
import java.sql.*;
import java.util.*;
import liquibase.Liquibase;
import liquibase.database.DatabaseFactory;
import liquibase.database.jvm.JdbcConnection;
import liquibase.resource.DirectoryResourceAccessor;

/** Schema migrations by Liquibase and by Flyway (community), as deployments run them. */
final class Migrations {
    private Migrations() {}

    static final String CHANGES = """
        <?xml version="1.0" encoding="UTF-8"?>
        <databaseChangeLog xmlns="http://www.liquibase.org/xml/ns/dbchangelog" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"
            xsi:schemaLocation="http://www.liquibase.org/xml/ns/dbchangelog http://www.liquibase.org/xml/ns/dbchangelog/dbchangelog-latest.xsd">
          <changeSet id="1" author="t">
            <createTable tableName="lq_person" remarks="people">
              <column name="id" type="bigint" autoIncrement="true"><constraints primaryKey="true" nullable="false"/></column>
              <column name="name" type="varchar(80)"><constraints nullable="false"/></column>
              <column name="email" type="varchar(120)"><constraints unique="true" uniqueConstraintName="lq_person_email"/></column>
              <column name="balance" type="decimal(12,2)" defaultValueNumeric="0"/>
              <column name="active" type="boolean" defaultValueBoolean="true"/>
              <column name="made" type="datetime" defaultValueComputed="current_timestamp"/>
              <column name="body" type="clob"/>
              <column name="raw" type="blob"/>
            </createTable>
            <createTable tableName="lq_order">
              <column name="id" type="uuid"><constraints primaryKey="true" primaryKeyName="lq_order_pk"/></column>
              <column name="person_id" type="bigint"/>
            </createTable>
            <addForeignKeyConstraint baseTableName="lq_order" baseColumnNames="person_id" constraintName="lq_order_person" referencedTableName="lq_person" referencedColumnNames="id" onDelete="CASCADE"/>
            <createIndex tableName="lq_person" indexName="lq_person_name"><column name="name"/><column name="made" descending="true"/></createIndex>
          </changeSet>
          <changeSet id="2" author="t">
            <addColumn tableName="lq_person"><column name="phone" type="varchar(20)" defaultValue="-"><constraints nullable="false"/></column></addColumn>
            <renameColumn tableName="lq_person" oldColumnName="body" newColumnName="story"/>
            <modifyDataType tableName="lq_person" columnName="name" newDataType="varchar(200)"/>
            <dropNotNullConstraint tableName="lq_person" columnName="name"/>
            <addNotNullConstraint tableName="lq_person" columnName="active" defaultNullValue="true"/>
            <addDefaultValue tableName="lq_person" columnName="phone" defaultValue="none"/>
            <createSequence sequenceName="lq_numbers" startValue="100" incrementBy="5"/>
            <createView viewName="lq_names">select id, name from lq_person where active</createView>
            <insert tableName="lq_person"><column name="name" value="Ada"/><column name="email" value="ada@x"/><column name="balance" valueNumeric="12.5"/></insert>
            <update tableName="lq_person"><column name="phone" value="42"/><where>name = 'Ada'</where></update>
            <sql>insert into lq_person (name, email) select 'n' || g, 'e' || g from generate_series(1, 5) g</sql>
          </changeSet>
          <changeSet id="3" author="t">
            <preConditions onFail="MARK_RAN"><tableExists tableName="lq_nowhere"/></preConditions>
            <dropTable tableName="lq_nowhere"/>
          </changeSet>
          <changeSet id="4" author="t">
            <preConditions onFail="MARK_RAN"><tableExists tableName="lq_order"/><not><columnExists tableName="lq_order" columnName="state"/></not></preConditions>
            <addColumn tableName="lq_order"><column name="state" type="int"/></addColumn>
            <addUniqueConstraint tableName="lq_order" columnNames="person_id, state" constraintName="lq_order_once"/>
          </changeSet>
        </databaseChangeLog>
        """;

    static void drop(String url, String... statements) throws SQLException {
        try (Connection connection = DriverManager.getConnection(url); Statement statement = connection.createStatement()) {
            for (String sql : statements) statement.execute(sql);
        }
    }

    static List<String> ask(String url, String sql) throws SQLException {
        List<String> out = new ArrayList<>();
        try (Connection connection = DriverManager.getConnection(url); Statement statement = connection.createStatement(); ResultSet rows = statement.executeQuery(sql)) {
            while (rows.next()) out.add(rows.getString(1));
        }
        return out;
    }

    static void liquibase(String url) throws Exception {
        java.util.logging.Logger.getLogger("").setLevel(java.util.logging.Level.SEVERE);
        String[] drops = {"drop view if exists lq_names", "drop table if exists lq_order, lq_person, databasechangelog, databasechangeloglock", "drop sequence if exists lq_numbers"};
        drop(url, drops);
        Path folder = Files.createTempDirectory("liquibase");
        Files.writeString(folder.resolve("changes.xml"), CHANGES);
        liquibase.Scope.child(liquibase.Scope.Attr.ui, new liquibase.ui.LoggerUIService(), () -> {
            for (int round = 0; round < 2; round++) {
                try (Liquibase runner = open(url, folder)) {
                    runner.update("");
                    Check.check("nothing is left, round " + round, runner.listUnrunChangeSets(null, null).size(), 0);
                }
            }
            Check.check("change log", ask(url, "select id || ' ' || exectype from databasechangelog order by orderexecuted"), List.of("1 EXECUTED", "2 EXECUTED", "3 MARK_RAN", "4 EXECUTED"));
            Check.check("lock released", ask(url, "select locked::text from databasechangeloglock"), List.of("false"));
            Check.check("data", ask(url, "select name || ' ' || phone || ' ' || balance || ' ' || active from lq_person order by id limit 2"), List.of("Ada 42 12.50 true", "n1 none 0.00 true"));
            Check.check("sequence", ask(url, "select nextval('lq_numbers')"), List.of("100"));
            try (Liquibase runner = open(url, folder)) {
                // Diffs and generated change logs read the whole schema back.
                var snapshot = liquibase.snapshot.SnapshotGeneratorFactory.getInstance().createSnapshot(runner.getDatabase().getDefaultSchema(), runner.getDatabase(), new liquibase.snapshot.SnapshotControl(runner.getDatabase()));
                var table = snapshot.get(new liquibase.structure.core.Table(null, "public", "lq_person"));
                List<String> columns = new ArrayList<>();
                for (var column : table.getColumns()) columns.add(column.getName() + " " + column.getType() + (Boolean.FALSE.equals(column.isNullable()) ? " not null" : "") + (column.isAutoIncrement() ? " auto" : "") + (column.getDefaultValue() == null ? "" : " = " + column.getDefaultValue()));
                Check.check("snapshot of columns", columns, List.of("id int8 not null auto", "name varchar(200 BYTE)", "email varchar(120 BYTE)", "balance numeric(12, 2) = 0", "active bool not null = true",
                    "made timestamp = now()", "story text", "raw oid", "phone varchar(20 BYTE) not null = none"));
                Check.check("snapshot of keys", List.of(table.getPrimaryKey().getName(), table.getUniqueConstraints().get(0).getName(), table.getIndexes().size()), List.of("lq_person_pkey", "lq_person_email", 3));
                var order = snapshot.get(new liquibase.structure.core.Table(null, "public", "lq_order"));
                var foreign = order.getOutgoingForeignKeys().get(0);
                Check.check("snapshot of a foreign key", List.of(foreign.getName(), foreign.getDeleteRule().toString(), foreign.getPrimaryKeyTable().getName()), List.of("lq_order_person", "importedKeyCascade", "lq_person"));
                runner.rollback(1, "");
                Check.check("rolled back", ask(url, "select count(*) from information_schema.columns where table_name = 'lq_order' and column_name = 'state'"), List.of("0"));
            }
        });
        Files.delete(folder.resolve("changes.xml"));
        Files.delete(folder);
        drop(url, drops);
    }

    static Liquibase open(String url, Path folder) throws Exception {
        var database = DatabaseFactory.getInstance().findCorrectDatabaseImplementation(new JdbcConnection(DriverManager.getConnection(url)));
        return new Liquibase("changes.xml", new DirectoryResourceAccessor(folder), database);
    }

    static void flyway(String url) throws Exception {
        java.util.logging.Logger.getLogger("").setLevel(java.util.logging.Level.SEVERE);
        drop(url, "drop schema if exists fw cascade");
        Path folder = Files.createTempDirectory("flyway");
        Files.writeString(folder.resolve("V1__first.sql"), "create table person (id serial primary key, name text not null);\ninsert into person (name) values ('Ada');\ncreate index person_name on person (name);\n");
        Files.writeString(folder.resolve("V2__second.sql"), "alter table person add column age int default 3 not null;\nupdate person set age = 36;\n");
        Files.writeString(folder.resolve("R__view.sql"), "create or replace view grown as select name from person where age > 17;\n");
        var flyway = org.flywaydb.core.Flyway.configure().dataSource(url, null, null).locations("filesystem:" + folder).schemas("fw").createSchemas(true).cleanDisabled(false).load();
        Check.check("migrate", flyway.migrate().migrationsExecuted, 3);
        Check.check("migrate again", flyway.migrate().migrationsExecuted, 0);
        flyway.validate();
        Check.check("history", ask(url, "select coalesce(version, '-') || ' ' || description || ' ' || success from fw.flyway_schema_history order by installed_rank"), List.of("- << Flyway Schema Creation >> true", "1 first true", "2 second true", "- view true"));
        Check.check("data", ask(url, "select name from fw.grown"), List.of("Ada"));
        Files.writeString(folder.resolve("V3__bad.sql"), "create table half (id int);\ninsert into nowhere values (1);\n");
        Check.fails("a failing migration", "42P01", flyway::migrate);
        Check.check("leaves nothing", ask(url, "select count(*) from information_schema.tables where table_name = 'half'"), List.of("0"));
        Files.delete(folder.resolve("V3__bad.sql"));
        // Two deployments at once: one migrates, the other waits for it.
        Files.writeString(folder.resolve("V4__slow.sql"), "insert into person (name) select 'p' || g from generate_series(1, 50) g;\n");
        List<Integer> executed = Collections.synchronizedList(new ArrayList<>());
        Thread[] both = new Thread[2];
        for (int n = 0; n < 2; n++) (both[n] = new Thread(() -> executed.add(org.flywaydb.core.Flyway.configure().dataSource(url, null, null).locations("filesystem:" + folder).schemas("fw").load().migrate().migrationsExecuted))).start();
        for (Thread one : both) one.join();
        Collections.sort(executed);
        Check.check("two at once", executed, List.of(0, 1));
        flyway.clean();
        Check.check("clean", ask(url, "select count(*) from information_schema.tables where table_schema = 'fw'"), List.of("0"));
        try (var files = Files.list(folder)) {
            for (Path file : files.toList()) Files.delete(file);
        }
        Files.delete(folder);
        drop(url, "drop schema if exists fw cascade");
    }
}
