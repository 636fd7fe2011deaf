// Package parallel lets more tests run at once than there are processors: tests of locks mostly wait.
package parallel

import "flag"

// Tests lets n parallel tests run at once, unless -parallel is given. It is called by TestMain.
func Tests(n string) {
	if !flag.Parsed() {
		flag.Parse()
	}
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if given {
		return
	}
	if err := flag.Set("test.parallel", n); err != nil {
		panic(err)
	}
}
