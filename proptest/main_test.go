package proptest

import (
	"flag"
	"os"
	"runtime"
	"strconv"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/quiet"
)

// checks is how many cases a test tries that is not told how many; the simulation has a number of its own.
const checks = 400

// told says whether somebody has said how many.
var told bool

func TestMain(m *testing.M) {
	flag.Parse()
	for _, m := range mutants {
		if m.bug == *withMutant {
			m.intoScripts()
		}
	}
	runtime.GOMAXPROCS(1) // what happens at one instant mostly happens in the same order then, and no slower
	quiet.Redis()
	_, told = os.LookupEnv("RAPID_CHECKS")
	flag.Visit(func(f *flag.Flag) { told = told || f.Name == "rapid.checks" })
	if !told {
		setFlag("rapid.checks", strconv.Itoa(checks))
	}
	os.Exit(m.Run())
}

// setFlag sets a flag and returns what it was.
func setFlag(name, value string) (was string) {
	f := flag.Lookup(name)
	was = f.Value.String()
	if err := f.Value.Set(value); err != nil {
		panic(err)
	}
	return was
}

// isWhole says whether a run is of the usual length or longer, so that it should reach everything. One that repeats a
// schedule is not.
func isWhole() bool {
	n, err := strconv.Atoi(flag.Lookup("rapid.checks").Value.String())
	return err == nil && n >= checks && !testing.Short() && flag.Lookup("rapid.failfile").Value.String() == ""
}
