package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/big"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
)

// pgx 5: types in both formats and every query mode, prepared statements, batches, CopyFrom, savepoints, cancellation, a pool.
func pgxSuite(ctx context.Context, url string) {
	conn, err := pgx.Connect(ctx, url)
	must("connect", err)
	defer conn.Close(ctx)
	check("server version", conn.PgConn().ParameterStatus("server_version")[:2], "15")
	check("standard strings", conn.PgConn().ParameterStatus("standard_conforming_strings"), "on")
	exec := func(sql string, args ...any) pgconn.CommandTag {
		tag, err := conn.Exec(ctx, sql, args...)
		must(sql, err)
		return tag
	}
	exec("drop table if exists px_line")
	exec("drop table if exists px_kinds")
	exec(`create table px_kinds (id serial primary key, b boolean, i2 smallint, i4 integer, i8 bigint, n numeric, f4 real, f8 double precision,
		t text, v varchar(20), c char(4), y bytea, u uuid, d date, tm time, ts timestamp, tz timestamptz, iv interval, j json, jb jsonb,
		ai int[], at text[], an numeric[], au uuid[], atz timestamptz[], f8a float8[])`)
	pgxTypes(ctx, conn)
	pgxStatements(ctx, conn)
	pgxTransactions(ctx, conn)
	pgxBatches(ctx, conn)
	pgxCopy(ctx, conn)
	pgxCancel(ctx, url)
	pgxListen(ctx, url)
	pgxPool(ctx, url)
	exec("drop table px_line")
	exec("drop table px_kinds")
}

func pgxTypes(ctx context.Context, conn *pgx.Conn) {
	utc := time.Date(2024, 2, 29, 12, 30, 15, 123456000, time.UTC)
	uuid := pgtype.UUID{Bytes: [16]byte{15: 7}, Valid: true}
	numeric := pgtype.Numeric{Int: big.NewInt(-1234567890123456789), Exp: -9, Valid: true}
	interval := pgtype.Interval{Months: 14, Days: 3, Microseconds: 4_005_006, Valid: true}
	values := []any{
		true, int16(-32768), int32(math.MaxInt32), int64(math.MinInt64), numeric, float32(1.5), 0.1, "tab\t'quote' \\ æ 🎉", "short", "ab", []byte{0, 1, 255},
		uuid, time.Date(1999, 12, 31, 0, 0, 0, 0, time.UTC), pgtype.Time{Microseconds: 3_723_000_004, Valid: true}, utc, utc, interval,
		map[string]any{"a": []any{1.5, nil, "x"}}, map[string]any{"b": map[string]any{"c": true}},
		[]*int32{ptr(int32(1)), nil, ptr(int32(-3))}, []string{"x", "with \"quotes\", commas", "", "NULL"}, []pgtype.Numeric{numeric}, []pgtype.UUID{uuid}, []time.Time{utc}, []float64{1.25, math.Inf(1)},
	}
	columns := "b,i2,i4,i8,n,f4,f8,t,v,c,y,u,d,tm,ts,tz,iv,j,jb,ai,at,an,au,atz,f8a"
	places := ""
	for n := range values {
		places += fmt.Sprintf(",$%d", n+1)
	}
	modes := []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec}
	for _, mode := range modes {
		var id int32
		args := append([]any{mode}, values...)
		must("insert", conn.QueryRow(ctx, "insert into px_kinds ("+columns+") values ("+places[1:]+") returning id", args...).Scan(&id))
		for _, format := range []int16{pgx.BinaryFormatCode, pgx.TextFormatCode} {
			var (
				b         bool
				i2        int16
				i4        int32
				i8        int64
				n         pgtype.Numeric
				f4        float32
				f8        float64
				t, v, c   string
				y         []byte
				u         pgtype.UUID
				d, ts, tz time.Time
				tm        pgtype.Time
				iv        pgtype.Interval
				j, jb     map[string]any
				ai        []*int32
				at        []string
				an        []pgtype.Numeric
				au        []pgtype.UUID
				atz       []time.Time
				f8a       []float64
			)
			row := conn.QueryRow(ctx, "select "+columns+" from px_kinds where id = $1", mode, pgx.QueryResultFormats{format}, id)
			must("scan", row.Scan(&b, &i2, &i4, &i8, &n, &f4, &f8, &t, &v, &c, &y, &u, &d, &tm, &ts, &tz, &iv, &j, &jb, &ai, &at, &an, &au, &atz, &f8a))
			found := []any{b, i2, i4, i8, n, f4, f8, t, v, c, y, u, d, tm, ts, tz.UTC(), iv, j, jb, ai, at, an, au, []time.Time{atz[0].UTC()}, f8a}
			expected := append([]any{}, values...)
			expected[9] = "ab  "
			check(fmt.Sprintf("types, %v, format %d", mode, format), found, expected)
		}
	}
	nulls := make([]any, len(values))
	var id int32
	must("nulls", conn.QueryRow(ctx, "insert into px_kinds ("+columns+") values ("+places[1:]+") returning id", nulls...).Scan(&id))
	rows, err := conn.Query(ctx, "select "+columns+" from px_kinds where id = $1", id)
	must("nulls", err)
	read, err := pgx.CollectOneRow(rows, func(row pgx.CollectableRow) ([]any, error) { return row.Values() })
	must("nulls", err)
	check("nulls", read, nulls)
	// Values that have forms of their own on the wire.
	var special struct {
		inf, ninf pgtype.Timestamptz
		nan       float64
		nnan      pgtype.Numeric
		empty     []int32
		bc        pgtype.Date
	}
	must("special", conn.QueryRow(ctx, "select $1::timestamptz, $2::timestamptz, $3::float8, $4::numeric, $5::int[], $6::date",
		pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true}, pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true},
		math.NaN(), pgtype.Numeric{NaN: true, Valid: true}, []int32{}, pgtype.Date{Time: time.Date(-43, 3, 15, 0, 0, 0, 0, time.UTC), Valid: true}).
		Scan(&special.inf, &special.ninf, &special.nan, &special.nnan, &special.empty, &special.bc))
	check("infinity", []pgtype.InfinityModifier{special.inf.InfinityModifier, special.ninf.InfinityModifier}, []pgtype.InfinityModifier{pgtype.Infinity, pgtype.NegativeInfinity})
	check("not a number", []bool{math.IsNaN(special.nan), special.nnan.NaN}, []bool{true, true})
	check("empty array", special.empty, []int32{})
	check("before Christ", special.bc.Time.Year(), -43)
	var simple string
	must("simple protocol", conn.QueryRow(ctx, "select $1::int || $2 || $3::text", pgx.QueryExecModeSimpleProtocol, 7, "it's \\ x", -1).Scan(&simple))
	check("simple protocol", simple, "7it's \\ x-1")
	rows, err = conn.Query(ctx, "select * from px_kinds where false")
	must("fields", err)
	oids := []uint32{}
	for _, field := range rows.FieldDescriptions() {
		oids = append(oids, field.DataTypeOID)
	}
	rows.Close()
	check("fields", oids, []uint32{23, 16, 21, 23, 20, 1700, 700, 701, 25, 1043, 1042, 17, 2950, 1082, 1083, 1114, 1184, 1186, 114, 3802, 1007, 1009, 1231, 2951, 1185, 1022})
}

func pgxStatements(ctx context.Context, conn *pgx.Conn) {
	description, err := conn.Prepare(ctx, "by_id", "select t, n + $2 as sum from px_kinds where id = $1 or u = $3 or i8 = any($4)")
	must("prepare", err)
	check("parameters", description.ParamOIDs, []uint32{23, 1700, 2950, 1016})
	check("result", []any{description.Fields[0].Name, description.Fields[0].DataTypeOID, description.Fields[1].DataTypeOID, description.Fields[0].TableAttributeNumber}, []any{"t", uint32(25), uint32(1700), uint16(9)})
	for n := range 10 {
		var text string
		must("by name", conn.QueryRow(ctx, "by_id", 1, n, nil, []int64{}).Scan(&text, nil))
		check(fmt.Sprintf("prepared %d", n), text, "tab\t'quote' \\ æ 🎉")
	}
	must("deallocate", conn.Deallocate(ctx, "by_id"))
	inferred, err := conn.Prepare(ctx, "", "insert into px_kinds (i2, n, tz, ai, jb) values ($1, $2, $3, $4, $5)")
	must("inferred", err)
	check("inferred from the columns", inferred.ParamOIDs, []uint32{21, 1700, 1184, 1007, 3802})
	type thing struct {
		ID   int32
		Text *string `db:"t"`
	}
	rows, err := conn.Query(ctx, "select id, t from px_kinds where id <= 4 order by id desc limit @n", pgx.NamedArgs{"n": 2})
	must("named arguments", err)
	things, err := pgx.CollectRows(rows, pgx.RowToStructByName[thing])
	must("named arguments", err)
	check("named arguments", []any{things[0].ID, things[0].Text, things[1].ID}, []any{int32(4), (*string)(nil), int32(3)})
	_, err = conn.Exec(ctx, "select $1::int / $2::int", 1, 0)
	check("division by zero", sqlstate(err), "22012")
	_, err = conn.Exec(ctx, "select nonsense")
	var server *pgconn.PgError
	errors.As(err, &server)
	check("undefined column", []any{server.Code, server.Position, server.Severity}, []any{"42703", int32(8), "ERROR"})
	_, err = conn.Exec(ctx, "insert into px_kinds (id) values (1)")
	errors.As(err, &server)
	check("unique", []any{server.Code, server.ConstraintName, server.TableName, server.SchemaName, server.Detail}, []any{"23505", "px_kinds_pkey", "px_kinds", "public", "Key (id)=(1) already exists."})
	check("no rows", conn.QueryRow(ctx, "select 1 where false").Scan(new(int)), pgx.ErrNoRows)
	tag, err := conn.Exec(ctx, "create table px_line (id bigint generated by default as identity primary key, kind int references px_kinds, q int not null)")
	must("create", err)
	check("tag", tag.String(), "CREATE TABLE")
	_, err = conn.Exec(ctx, "insert into px_line (kind, q) values (-1, 1)")
	check("foreign key", sqlstate(err), "23503")
	results, err := conn.PgConn().Exec(ctx, "select 1; insert into px_line (q) values (1), (2); select 'x'").ReadAll()
	must("several", err)
	check("several statements", []any{string(results[0].Rows[0][0]), results[1].CommandTag.String(), string(results[2].Rows[0][0])}, []any{"1", "INSERT 0 2", "x"})
}

func pgxTransactions(ctx context.Context, conn *pgx.Conn) {
	count := func() (n int) {
		must("count", conn.QueryRow(ctx, "select count(*) from px_line").Scan(&n))
		return n
	}
	err := pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "insert into px_line (q) values (3)"); err != nil {
			return err
		}
		inner := pgx.BeginFunc(ctx, tx, func(inner pgx.Tx) error {
			_, err := inner.Exec(ctx, "insert into px_line (kind, q) values (-1, 1)")
			return err
		})
		check("inside a savepoint", sqlstate(inner), "23503")
		_, err := tx.Exec(ctx, "insert into px_line (q) values (4)")
		return err
	})
	must("transaction", err)
	check("committed", count(), 4)
	must("rollback", errOnly(pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "delete from px_line")
		must("delete", err)
		return errRollback
	})))
	check("rolled back", count(), 4)
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{AccessMode: pgx.ReadOnly})
	must("begin", err)
	_, err = tx.Exec(ctx, "delete from px_line")
	check("read only", sqlstate(err), "25006")
	_, err = tx.Exec(ctx, "select 1")
	check("failed block", sqlstate(err), "25P02")
	check("commit of a failed block", tx.Commit(ctx), pgx.ErrTxCommitRollback)
}

func pgxBatches(ctx context.Context, conn *pgx.Conn) {
	batch := &pgx.Batch{}
	for n := range 100 {
		batch.Queue("insert into px_line (kind, q) values ($1, $2)", 1, n)
	}
	sum := 0
	batch.Queue("select sum(q) from px_line where kind = $1", 1).QueryRow(func(row pgx.Row) error { return row.Scan(&sum) })
	must("batch", conn.SendBatch(ctx, batch).Close())
	check("batch", sum, 4950)
	// What fails takes what was queued with it along: one implicit transaction.
	failing := &pgx.Batch{}
	failing.Queue("delete from px_line where q < 50")
	failing.Queue("select 1 / $1::int", 0)
	failing.Queue("select 1")
	check("failing batch", sqlstate(conn.SendBatch(ctx, failing).Close()), "22012")
	var left int
	must("after", conn.QueryRow(ctx, "select count(*) from px_line where kind = 1").Scan(&left))
	check("failing batch undone", left, 100)
	pipeline := conn.PgConn().StartPipeline(ctx)
	pipeline.SendQueryParams("select $1::int + 1", [][]byte{[]byte("41")}, nil, nil, nil)
	must("sync", pipeline.Sync())
	pipeline.SendQueryParams("select 1/0", nil, nil, nil, nil)
	must("sync", pipeline.Sync())
	pipeline.SendQueryParams("select 'third'", nil, nil, nil, nil)
	must("sync", pipeline.Sync())
	outcomes := []string{}
	for {
		result, err := pipeline.GetResults()
		if err != nil {
			outcomes = append(outcomes, sqlstate(err))
			continue
		}
		if result == nil {
			break
		}
		switch result := result.(type) {
		case *pgconn.ResultReader:
			read := result.Read()
			if read.Err != nil {
				outcomes = append(outcomes, sqlstate(read.Err))
			} else {
				outcomes = append(outcomes, string(read.Rows[0][0]))
			}
		case *pgconn.PipelineSync:
			outcomes = append(outcomes, "sync")
		}
		if len(outcomes) >= 6 {
			break
		}
	}
	must("pipeline", pipeline.Close())
	check("pipeline", outcomes, []string{"42", "sync", "22012", "sync", "third", "sync"})
}

func pgxCopy(ctx context.Context, conn *pgx.Conn) {
	rows := [][]any{}
	for n := range 5000 {
		rows = append(rows, []any{fmt.Sprintf("copied %d", n), int64(n), pgtype.Numeric{Int: big.NewInt(int64(n)), Exp: -2, Valid: true}, []int32{int32(n)}, time.Unix(int64(n), 0).UTC(), nil})
	}
	copied, err := conn.CopyFrom(ctx, pgx.Identifier{"px_kinds"}, []string{"t", "i8", "n", "ai", "tz", "u"}, pgx.CopyFromRows(rows))
	must("CopyFrom", err)
	check("CopyFrom", copied, int64(5000))
	var total int64
	var numeric pgtype.Numeric
	must("copied", conn.QueryRow(ctx, "select sum(i8)::int8, max(n) from px_kinds where t like 'copied %' and ai[1] = i8 and u is null").Scan(&total, &numeric))
	check("copied", []any{total, numeric.Int.Int64(), numeric.Exp}, []any{int64(12497500), int64(4999), int32(-2)})
	_, err = conn.CopyFrom(ctx, pgx.Identifier{"px_kinds"}, []string{"id"}, pgx.CopyFromRows([][]any{{1}}))
	check("CopyFrom, unique", sqlstate(err), "23505")
	tag, err := conn.Exec(ctx, "delete from px_kinds where t like 'copied %'")
	must("delete", err)
	check("deleted", tag.RowsAffected(), int64(5000))
}

func pgxCancel(ctx context.Context, url string) {
	conn, err := pgx.Connect(ctx, url)
	must("connect", err)
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, "set statement_timeout = '150ms'")
	must("set", err)
	_, err = conn.Exec(ctx, "select pg_sleep(30)")
	check("statement_timeout", sqlstate(err), "57014")
	_, err = conn.Exec(ctx, "reset statement_timeout")
	must("reset", err)
	go func() {
		time.Sleep(300 * time.Millisecond)
		must("cancel request", conn.PgConn().CancelRequest(ctx))
	}()
	_, err = conn.Exec(ctx, "select pg_sleep(30)")
	check("cancel request", sqlstate(err), "57014")
	check("after it", conn.Ping(ctx), nil)
	limited, stop := context.WithTimeout(ctx, 200*time.Millisecond)
	defer stop()
	_, err = conn.Exec(limited, "select pg_sleep(30)")
	check("deadline", []bool{errors.Is(err, context.DeadlineExceeded), conn.IsClosed()}, []bool{true, true})
}

func pgxPool(ctx context.Context, url string) {
	pool, err := pgxpool.New(ctx, url+"&pool_max_conns=4")
	must("pool", err)
	defer pool.Close()
	_, err = pool.Exec(ctx, "insert into px_line (id, q) values (100000, 0)")
	must("row", err)
	var group sync.WaitGroup
	for range 40 {
		group.Go(func() {
			_, err := pool.Exec(ctx, "update px_line set q = q + 1 where id = $1", 100000)
			must("update", err)
		})
	}
	group.Wait()
	var q int
	must("pool", pool.QueryRow(ctx, "select q from px_line where id = 100000").Scan(&q))
	check("pool", q, 40)
	check("pool size", pool.Stat().MaxConns(), int32(4))
}

func pgxListen(ctx context.Context, url string) {
	conn, err := pgx.Connect(ctx, url)
	must("connect", err)
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, "listen px_news")
	must("listen", err)
	sender, err := pgx.Connect(ctx, url)
	must("connect", err)
	defer sender.Close(ctx)
	must("rolled back", errOnly(pgx.BeginFunc(ctx, sender, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "notify px_news, 'rolled back'")
		must("notify", err)
		return errRollback
	})))
	_, err = sender.Exec(ctx, "select pg_notify($1, $2)", "px_news", "hello")
	must("pg_notify", err)
	notification, err := conn.WaitForNotification(ctx)
	must("wait for notification", err)
	check("notification", []any{notification.PID, notification.Channel, notification.Payload},
		[]any{sender.PgConn().PID(), "px_news", "hello"})
}

var errRollback = errors.New("roll back")

// errOnly turns the error that only asked for a rollback into none.
func errOnly(err error) error {
	if errors.Is(err, errRollback) {
		return nil
	}
	return err
}

func ptr[T any](value T) *T { return &value }
