package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"sort"
	"strings"
	"time"

	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/logger"
)

type gormCompany struct {
	ID      uint       `gorm:"primaryKey"`
	Name    string     `gorm:"size:60;uniqueIndex;not null"`
	Country string     `gorm:"type:varchar(2);default:'NO'"`
	Staff   []gormUser `gorm:"foreignKey:CompanyID;constraint:OnUpdate:CASCADE,OnDelete:SET NULL"`
}

type gormUser struct {
	gorm.Model
	Name      string  `gorm:"index:gorm_user_name_age,priority:1"`
	Age       uint8   `gorm:"index:gorm_user_name_age,priority:2;check:gorm_user_age,age < 150"`
	Email     *string `gorm:"uniqueIndex"`
	Balance   string  `gorm:"type:numeric(12,2);default:0"`
	Active    bool    `gorm:"default:true"`
	Score     float64
	Photo     []byte
	Settings  map[string]any `gorm:"type:jsonb;serializer:json"`
	Token     string         `gorm:"type:uuid;default:gen_random_uuid()"`
	Birthday  *time.Time     `gorm:"type:date"`
	CompanyID *uint
	Company   *gormCompany
	Card      gormCard       `gorm:"foreignKey:UserID;constraint:OnDelete:CASCADE"`
	Languages []gormLanguage `gorm:"many2many:gorm_user_languages;joinForeignKey:UserID;joinReferences:LanguageID"`
}

type gormCard struct {
	ID     uint
	UserID uint
	Number string `gorm:"not null;comment:printed on the card"`
}

type gormLanguage struct {
	Code string `gorm:"primaryKey;size:5"`
	Name string
}

func (gormCompany) TableName() string  { return "gorm_companies" }
func (gormUser) TableName() string     { return "gorm_users" }
func (gormCard) TableName() string     { return "gorm_cards" }
func (gormLanguage) TableName() string { return "gorm_languages" }

// The model as a later version of the application has it.
type gormUserLater struct {
	gormUser
	Nickname string `gorm:"size:30;index"`
	Level    int    `gorm:"not null;default:3"`
}

// statements keeps what GORM sends.
type statements struct {
	logger.Interface
	sent []string
}

func (s *statements) LogMode(logger.LogLevel) logger.Interface { return s }
func (s *statements) Trace(_ context.Context, _ time.Time, fc func() (string, int64), _ error) {
	sql, _ := fc()
	s.sent = append(s.sent, sql)
}

var changes = regexp.MustCompile(`(?i)^\s*(create|alter|drop|comment)\b`)

// definitions takes those of the statements that define something.
func (s *statements) definitions() []string {
	found := []string{}
	for _, sql := range s.sent {
		if changes.MatchString(sql) {
			found = append(found, sql)
		}
	}
	s.sent = nil
	return found
}

// GORM: AutoMigrate (whose second run changes nothing), the migrator's look at the schema, CRUD, associations, hooks of
// soft deletion, transactions with savepoints, upserts, rows, locks.
func gormSuite(ctx context.Context, url string) {
	log := &statements{Interface: logger.Discard}
	db, err := gorm.Open(postgres.Open(url), &gorm.Config{Logger: log, TranslateError: true})
	must("open", err)
	tables := []string{"gorm_user_languages", "gorm_cards", "gorm_users", "gorm_companies", "gorm_languages"}
	for _, table := range tables {
		must("drop", db.Exec("drop table if exists "+table).Error)
	}
	models := []any{&gormCompany{}, &gormLanguage{}, &gormUser{}, &gormCard{}}
	log.definitions()
	must("AutoMigrate", db.AutoMigrate(models...))
	check("AutoMigrate defines", len(log.definitions()) >= 8, true)
	must("AutoMigrate", db.AutoMigrate(models...))
	check("a second AutoMigrate changes nothing", log.definitions(), []string{})
	gormMigrator(db, log)
	gormCRUD(db)
	gormAssociations(db)
	gormTransactions(db)
	for _, table := range tables {
		must("drop", db.Migrator().DropTable(table))
	}
}

func gormMigrator(db *gorm.DB, log *statements) {
	m := db.Migrator()
	check("has", []bool{m.HasTable("gorm_users"), m.HasTable("gorm_nothing"), m.HasColumn(&gormUser{}, "email"), m.HasColumn(&gormUser{}, "nope"),
		m.HasIndex(&gormUser{}, "gorm_user_name_age"), m.HasConstraint(&gormUser{}, "gorm_user_age"), m.HasConstraint(&gormCompany{}, "Staff")},
		[]bool{true, false, true, false, true, true, true})
	columns, err := m.ColumnTypes(&gormUser{})
	must("ColumnTypes", err)
	found := []string{}
	for _, column := range columns {
		nullable, _ := column.Nullable()
		primary, _ := column.PrimaryKey()
		unique, _ := column.Unique()
		increments, _ := column.AutoIncrement()
		value, _ := column.DefaultValue()
		precision, scale, _ := column.DecimalSize()
		kind, _ := column.ColumnType()
		found = append(found, fmt.Sprintf("%s|%s|%s|%v|%v|%v|%v|%s|%d,%d", column.Name(), column.DatabaseTypeName(), kind, nullable, primary, unique, increments, value, precision, scale))
	}
	// Nothing orders what GORM asks for.
	sort.Strings(found)
	expected := []string{
		`id|int8|bigint|false|true|false|true||64,0`,
		`created_at|timestamptz|timestamp with time zone|true|false|false|false||6,0`,
		`updated_at|timestamptz|timestamp with time zone|true|false|false|false||6,0`,
		`deleted_at|timestamptz|timestamp with time zone|true|false|false|false||6,0`,
		`name|text|text|true|false|false|false||0,0`,
		`age|int2|smallint|true|false|false|false||16,0`,
		`email|text|text|true|false|false|false||0,0`,
		`balance|numeric|numeric(12,2)|true|false|false|false|0|12,2`,
		`active|bool|boolean|true|false|false|false|true|0,0`,
		`score|numeric|numeric|true|false|false|false||65535,65531`,
		`photo|bytea|bytea|true|false|false|false||0,0`,
		`settings|jsonb|jsonb|true|false|false|false||0,0`,
		`token|uuid|uuid|true|false|false|false|gen_random_uuid()|0,0`,
		`birthday|date|date|true|false|false|false||0,0`,
		`company_id|int8|bigint|true|false|false|false||64,0`,
	}
	sort.Strings(expected)
	check("ColumnTypes", found, expected)
	indexes, err := m.GetIndexes(&gormUser{})
	must("GetIndexes", err)
	names := map[string]string{}
	for _, index := range indexes {
		unique, _ := index.Unique()
		primary, _ := index.PrimaryKey()
		names[index.Name()] = fmt.Sprint(strings.Join(index.Columns(), ","), " ", unique, " ", primary)
	}
	check("GetIndexes", names, map[string]string{
		"gorm_user_name_age": "name,age false false", "idx_gorm_users_deleted_at": "deleted_at false false", "idx_gorm_users_email": "email true false",
	})
	log.definitions()
	must("later", db.Table("gorm_users").AutoMigrate(&gormUserLater{}))
	check("a later model adds", len(log.definitions()), 3)
	must("later", db.Table("gorm_users").AutoMigrate(&gormUserLater{}))
	check("and only once", log.definitions(), []string{})
	must("AlterColumn", m.AlterColumn(&gormUserLater{}, "Nickname"))
	must("RenameColumn", m.RenameColumn("gorm_users", "nickname", "alias"))
	must("DropColumn", m.DropColumn("gorm_users", "alias"))
	must("RenameIndex", m.RenameIndex(&gormUser{}, "gorm_user_name_age", "gorm_user_renamed"))
	check("renamed", m.HasIndex(&gormUser{}, "gorm_user_renamed"), true)
	must("DropConstraint", m.DropConstraint(&gormUser{}, "gorm_user_age"))
	must("CreateConstraint", m.CreateConstraint(&gormUser{}, "gorm_user_age"))
	check("current database", m.CurrentDatabase() != "", true)
	tables, err := m.GetTables()
	must("GetTables", err)
	check("GetTables", strings.Contains(strings.Join(tables, " "), "gorm_users"), true)
}

func gormCRUD(db *gorm.DB) {
	email, born := "ada@x", time.Date(1815, 12, 10, 0, 0, 0, 0, time.UTC)
	ada := gormUser{Name: "Ada", Age: 36, Email: &email, Balance: "12.50", Score: 1.25, Photo: []byte{0, 255}, Settings: map[string]any{"a": []any{1.0, nil}}, Birthday: &born}
	must("create", db.Create(&ada).Error)
	check("generated", []any{ada.ID, ada.Active, len(ada.Token)}, []any{uint(1), true, 36})
	batch := []gormUser{}
	for n := range 120 {
		batch = append(batch, gormUser{Name: fmt.Sprintf("U%d", n%4), Age: uint8(n), Balance: fmt.Sprint(n)})
	}
	must("in batches", db.CreateInBatches(&batch, 50).Error)
	check("keys of a batch", []uint{batch[0].ID, batch[119].ID}, []uint{2, 121})
	var back gormUser
	must("first", db.First(&back, "email = ?", "ada@x").Error)
	check("types", []any{back.Name, back.Age, *back.Email, back.Balance, back.Score, back.Photo, back.Settings, back.Birthday.UTC(), back.CompanyID, back.Token}, []any{"Ada", uint8(36), "ada@x", "12.50", 1.25, []byte{0, 255}, map[string]any{"a": []any{1.0, nil}}, born, (*uint)(nil), ada.Token})
	check("not found", errors.Is(db.First(&gormUser{}, 9999).Error, gorm.ErrRecordNotFound), true)
	check("duplicate", errors.Is(db.Create(&gormUser{Name: "x", Email: &email}).Error, gorm.ErrDuplicatedKey), true)
	check("check", errors.Is(db.Create(&gormUser{Name: "x", Age: 200}).Error, gorm.ErrCheckConstraintViolated), true)
	type group struct {
		Name string
		N    int64
		Top  int
	}
	var groups []group
	must("group", db.Model(&gormUser{}).Select("name, count(*) as n, max(age) as top").Where("age between ? and ?", 1, 110).Group("name").Having("count(*) > ?", 1).Order("name desc").Limit(2).Find(&groups).Error)
	check("group", groups, []group{{"U3", 27, 107}, {"U2", 28, 110}})
	var ages []uint8
	must("pluck", db.Model(&gormUser{}).Where(map[string]any{"name": "U1"}).Or("name = ? and age in ?", "U2", []int{2, 6}).Order("age").Limit(5).Pluck("age", &ages).Error)
	check("pluck", fmt.Sprint(ages), "[1 2 5 6 9]")
	must("update", db.Model(&gormUser{}).Where("name = ?", "U1").Updates(map[string]any{"score": gorm.Expr("age * ?", 2), "active": false}).Error)
	var scored []gormUser
	must("returning", db.Model(&scored).Clauses(clause.Returning{Columns: []clause.Column{{Name: "id"}, {Name: "score"}}}).Where("name = ? and age < 6", "U1").Update("score", gorm.Expr("score + 1")).Error)
	check("returning", len(scored) == 2 && scored[0].Score+scored[1].Score == 14, true)
	changed := gormUser{Name: "Ada again", Email: &email, Balance: "1"}
	must("upsert", db.Clauses(clause.OnConflict{Columns: []clause.Column{{Name: "email"}}, DoUpdates: clause.AssignmentColumns([]string{"name"})}).Create(&changed).Error)
	must("first", db.First(&back, 1).Error)
	check("upsert", []any{changed.ID, back.Name, back.Balance}, []any{uint(1), "Ada again", "12.50"})
	must("soft delete", db.Delete(&gormUser{}, "name = ?", "U0").Error)
	var live, all int64
	db.Model(&gormUser{}).Count(&live)
	db.Unscoped().Model(&gormUser{}).Count(&all)
	check("soft delete", []int64{live, all}, []int64{91, 121})
	must("delete", db.Unscoped().Where("deleted_at is not null").Delete(&gormUser{}).Error)
	rows, err := db.Model(&gormUser{}).Select("id").Where("id in (?)", db.Model(&gormUser{}).Select("max(id)")).Rows()
	must("rows", err)
	var id uint
	for rows.Next() {
		must("scan", rows.Scan(&id))
	}
	check("subquery", id, uint(121))
	var total int
	must("in batches", db.Model(&gormUser{}).FindInBatches(&[]gormUser{}, 40, func(tx *gorm.DB, _ int) error { total += int(tx.RowsAffected); return nil }).Error)
	check("found in batches", total, 91)
	var raw map[string]any
	must("raw", db.Raw("select cast(@a as int) + 1 as sum, cast(@b as text) as text", map[string]any{"a": 41, "b": "x"}).Take(&raw).Error)
	check("raw", raw, map[string]any{"sum": int32(42), "text": "x"})
}

func gormAssociations(db *gorm.DB) {
	company := gormCompany{Name: "Acme", Staff: []gormUser{{Name: "S1", Card: gormCard{Number: "4711"}, Languages: []gormLanguage{{"no", "Norwegian"}, {"en", "English"}}}, {Name: "S2"}}}
	must("create", db.Create(&company).Error)
	check("defaults come back", company.Country, "NO")
	var back gormCompany
	must("preload", db.Preload("Staff", func(tx *gorm.DB) *gorm.DB { return tx.Order("name") }).Preload("Staff.Card").Preload("Staff.Languages", func(tx *gorm.DB) *gorm.DB { return tx.Order("code") }).First(&back, company.ID).Error)
	check("preload", []any{len(back.Staff), back.Staff[0].Card.Number, back.Staff[0].Languages, len(back.Staff[1].Languages)}, []any{2, "4711", []gormLanguage{{"en", "English"}, {"no", "Norwegian"}}, 0})
	var user gormUser
	must("joins", db.Joins("Company").Joins("Card").Where(`"Company".name = ?`, "Acme").Order("gorm_users.name").First(&user).Error)
	check("joins", []any{user.Company.Name, user.Card.Number}, []any{"Acme", "4711"})
	must("append", db.Model(&user).Association("Languages").Append(&gormLanguage{"se", "Sami"}))
	check("count", db.Model(&user).Association("Languages").Count(), int64(3))
	must("replace", db.Model(&user).Association("Languages").Replace(&gormLanguage{Code: "en"}))
	check("replaced", db.Model(&user).Association("Languages").Count(), int64(1))
	check("foreign key", errors.Is(db.Model(&gormUser{}).Where("name = ?", "S2").Update("company_id", 999).Error, gorm.ErrForeignKeyViolated), true)
	must("delete the company", db.Delete(&gormCompany{}, company.ID).Error)
	must("set null", db.First(&user, user.ID).Error)
	check("on delete set null", user.CompanyID, (*uint)(nil))
}

func gormTransactions(db *gorm.DB) {
	count := func() (n int64) {
		must("count", db.Model(&gormLanguage{}).Count(&n).Error)
		return n
	}
	before := count()
	err := db.Transaction(func(tx *gorm.DB) error {
		must("create", tx.Create(&gormLanguage{"de", "German"}).Error)
		inner := tx.Transaction(func(inner *gorm.DB) error {
			must("create", inner.Create(&gormLanguage{"fr", "French"}).Error)
			return inner.Create(&gormLanguage{"de", "again"}).Error
		})
		check("inner", errors.Is(inner, gorm.ErrDuplicatedKey), true)
		return nil
	})
	must("transaction", err)
	check("savepoint", count(), before+1)
	must("manual", func() error {
		tx := db.Begin()
		tx.Create(&gormLanguage{"it", "Italian"})
		tx.SavePoint("one")
		tx.Create(&gormLanguage{"es", "Spanish"})
		tx.RollbackTo("one")
		return tx.Commit().Error
	}())
	check("manual savepoint", count(), before+2)
	var locked []gormLanguage
	must("for update", db.Transaction(func(tx *gorm.DB) error {
		return tx.Clauses(clause.Locking{Strength: "UPDATE", Options: "SKIP LOCKED"}).Where("code in ?", []string{"de", "it"}).Order("code").Find(&locked).Error
	}))
	check("for update", len(locked), 2)
	prepared := db.Session(&gorm.Session{PrepareStmt: true})
	for n := range 6 {
		var language gormLanguage
		must("prepared", prepared.Where("code = ?", []string{"de", "it"}[n%2]).Take(&language).Error)
		check(fmt.Sprintf("prepared %d", n), language.Name, []string{"German", "Italian"}[n%2])
	}
	var dry gormLanguage
	check("dry run", strings.Contains(db.Session(&gorm.Session{DryRun: true}).First(&dry, "code = ?", "x").Statement.SQL.String(), "$1"), true)
}
