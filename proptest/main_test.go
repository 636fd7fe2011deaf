package proptest

import (
	"flag"
	"os"
	"runtime"
	"strconv"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/quiet"
)

// checks is the default number of checks, and wholeChecks the least number in which everything should be reached; the simulation has
// its own.
const (
	checks      = 50
	wholeChecks = 400
)

// checksSet reports whether the number of checks was set.
var checksSet bool

func TestMain(m *testing.M) {
	flag.Parse()
	for _, m := range mutants {
		if m.bug == *withMutant {
			m.intoScripts()
		}
	}
	runtime.GOMAXPROCS(1) // events of one instant then mostly happen in the same order, and no slower
	quiet.Redis()
	_, checksSet = os.LookupEnv("RAPID_CHECKS")
	flag.Visit(func(f *flag.Flag) { checksSet = checksSet || f.Name == "rapid.checks" })
	if !checksSet {
		setFlag("rapid.checks", strconv.Itoa(checks))
	}
	os.Exit(m.Run())
}

// setFlag sets a flag and returns its former value.
func setFlag(name, value string) (was string) {
	f := flag.Lookup(name)
	was = f.Value.String()
	if err := f.Value.Set(value); err != nil {
		panic(err)
	}
	return was
}

// isWhole reports whether a run is so long that it should reach everything. A run that repeats a schedule is not.
func isWhole() bool {
	n, err := strconv.Atoi(flag.Lookup("rapid.checks").Value.String())
	return err == nil && n >= wholeChecks && !testing.Short() && flag.Lookup("rapid.failfile").Value.String() == ""
}
