// Stock Go drivers and ORMs against a running server: go run . pgx|gorm URL. Exits non-zero at the first mismatch.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"

	"github.com/jackc/pgx/v5/pgconn"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: drivers pgx|gorm postgres://USER@HOST:PORT/DATABASE")
		os.Exit(2)
	}
	suites := map[string]func(context.Context, string){"pgx": pgxSuite, "gorm": gormSuite}
	suite, known := suites[os.Args[1]]
	if !known {
		fmt.Fprintln(os.Stderr, "no suite", os.Args[1])
		os.Exit(2)
	}
	suite(context.Background(), os.Args[2])
	fmt.Printf("%s: all ok\n", os.Args[1])
}

func check(name string, found, expected any) {
	if !reflect.DeepEqual(found, expected) {
		fmt.Printf("FAILED %s\nexpected: %#v\nfound:    %#v\n", name, expected, found)
		os.Exit(1)
	}
	fmt.Println("ok", name)
}

// must ends the process where an error leaves nothing to compare.
func must(name string, err error) {
	if err != nil {
		fmt.Printf("FAILED %s: %v\n", name, err)
		os.Exit(1)
	}
}

// sqlstate of an error, or its text when it does not come from the server.
func sqlstate(err error) string {
	var server *pgconn.PgError
	if errors.As(err, &server) {
		return server.Code
	}
	return fmt.Sprint(err)
}
