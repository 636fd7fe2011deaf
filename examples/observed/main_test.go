package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"go.yaml.in/yaml/v2"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/fair"
	"github.com/lockkeeper/lockkeeper/internal/testing/example"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
	"github.com/lockkeeper/lockkeeper/once"
	"github.com/lockkeeper/lockkeeper/rwlock"
)

// TestEveryInstrumentIsExported runs the service until its endpoint shows each instrument with a value, and then checks the queries
// of the dashboard and of the alert rules against what the endpoint shows.
func TestEveryInstrumentIsExported(t *testing.T) {
	s := lockkeepertest.New(t)
	keeper, handler, err := observe(s.Client(t), &lockkeeper.Options{HeartbeatInterval: 200 * time.Millisecond})
	must.OK(t, err)
	defer keeper.Close()
	server := httptest.NewServer(handler)
	defer server.Close()

	ctx, cancel := context.WithCancel(t.Context())
	var workers sync.WaitGroup
	for _, opts := range []fair.Options{{TTL: 300 * time.Millisecond}, {TTL: 300 * time.Millisecond}, {TTL: 100 * time.Millisecond, NoRenewal: true}} {
		workers.Go(func() { must.Report(t, work(ctx, keeper, opts, 250*time.Millisecond)) })
	}
	nothing := func(context.Context, uint64) error { return nil }
	lock := must.Get(rwlock.New(keeper, "prices", nil))(t) // for the label of the mode
	must.OK(t, lock.DoRead(ctx, nothing))
	job := must.Get(once.New(keeper, "nightly", time.Hour, nil))(t)
	for range 2 { // the second is skipped
		must.Get(job.Do(ctx, nothing))(t)
	}
	want := []string{
		`lockkeeper_acquire_duration_seconds{lockkeeper_kind="once",lockkeeper_result="skipped"}`,
		`lockkeeper_job_success_timestamp_seconds{lockkeeper_kind="once"}`,
		`lockkeeper_acquire_duration_seconds{lockkeeper_kind="fair",lockkeeper_result="acquired"}`,
		`lockkeeper_lease_duration_seconds{lockkeeper_end="lost",lockkeeper_kind="fair"}`,
		`lockkeeper_lease_duration_seconds{lockkeeper_end="released",lockkeeper_kind="fair"}`,
		`lockkeeper_lease_duration_seconds{lockkeeper_end="released",lockkeeper_kind="rwlock",lockkeeper_mode="read"}`,
		`lockkeeper_leases_held{lockkeeper_kind="fair"}`,
		`lockkeeper_leases_lost_total{lockkeeper_kind="fair",lockkeeper_reason="not_renewed"}`,
		`lockkeeper_renewals_total{lockkeeper_kind="fair"}`,
		`lockkeeper_requests_waiting{lockkeeper_kind="fair"}`,
		`lockkeeper_wakeups_total{lockkeeper_kind="fair",lockkeeper_result="received"}`,
	}
	missing := slices.Clone(want)
	for deadline := time.Now().Add(time.Minute); len(missing) > 0; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not exported with a value: %q", missing)
		}
		values := series(scrape(t, server.URL))
		missing = slices.DeleteFunc(missing, func(name string) bool { return values[name] > 0 })
	}
	cancel()
	workers.Wait()
	s.Unreachable()
	ctx, cancel = context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if _, err := lock.TryLock(ctx); err == nil {
		t.Error("a server that cannot be reached has granted a lock")
	}
	s.Restore()

	families := scrape(t, server.URL)
	values := series(families)
	for _, name := range append(want, `lockkeeper_acquire_duration_seconds{error_type="unavailable",lockkeeper_kind="rwlock",lockkeeper_mode="write",lockkeeper_result="error"}`) {
		n, ok := values[name]
		if isGauge := strings.Contains(name, "leases_held") || strings.Contains(name, "requests_waiting"); !ok || isGauge && n != 0 {
			t.Errorf("%s is %v at the end, exported: %t", name, n, ok)
		}
	}
	checkDocumentation(t, families)
	for _, query := range append(dashboard(t), alerts(t)...) {
		for _, problem := range problems(query, families) {
			t.Errorf("%s: %s", query, problem)
		}
	}
	for _, query := range []string{
		`lockkeeper_leases_lost`, `lockkeeper_leases_held{kind="fair"}`, `sum by (kind) (lockkeeper_leases_held)`,
		`lockkeeper_wakeups_total{lockkeeper_result="missed"}`, `rate(lockkeeper_renewals_total[5m]`,
		`sum by (le) (lockkeeper_acquire_duration_seconds_count)`,
	} {
		if len(problems(query, families)) == 0 {
			t.Errorf("nothing is wrong with %s", query)
		}
	}
}

// TestServiceStartsItsOwnServer checks that the service without options shows metrics, and ends without an error.
func TestServiceStartsItsOwnServer(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	in, out := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, "", "127.0.0.1:0", out) }()
	var url string
	must.Get(fmt.Fscanf(in, "metrics: %s\n", &url))(t)
	for series(scrape(t, url))[`lockkeeper_leases_held{lockkeeper_kind="fair"}`] == 0 {
		time.Sleep(time.Millisecond)
	}
	cancel()
	must.Report(t, <-ended)
}

// TestServiceFailsWithoutRedis checks that it does not end as if all were well.
func TestServiceFailsWithoutRedis(t *testing.T) {
	if err := run(t.Context(), "redis://127.0.0.1:1", "127.0.0.1:0", io.Discard); err == nil || !strings.Contains(err.Error(), "127.0.0.1:1:") {
		t.Errorf("error %v", err)
	}
}

// checkDocumentation: docs/observability.md lists what is exported, and its code is that of this package.
func checkDocumentation(t *testing.T, families map[string]*dto.MetricFamily) {
	t.Helper()
	page := example.Code(t, "../../docs/observability.md")
	example.RequireTested(t, page, example.Code(t, "main.go"))
	documented := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `lockkeeper[a-z._]+` \\| `(lockkeeper_\\w+)`").FindAllStringSubmatch(page, -1) {
		documented[m[1]] = true
		if families[m[1]] == nil {
			t.Errorf("%s is not exported", m[1])
		}
	}
	for name := range families {
		if strings.HasPrefix(name, "lockkeeper_") && !documented[name] {
			t.Errorf("%s is not documented", name)
		}
	}
}

// scrape returns what the endpoint shows.
func scrape(t *testing.T, url string) map[string]*dto.MetricFamily {
	t.Helper()
	resp := must.Get(http.Get(url))(t)
	defer resp.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	return must.Get(parser.TextToMetricFamilies(resp.Body))(t)
}

// series returns the values by name and labels; of a histogram the number of observations.
func series(families map[string]*dto.MetricFamily) map[string]float64 {
	values := map[string]float64{}
	for name, family := range families {
		for _, m := range family.Metric {
			var list []string
			for _, l := range m.Label {
				if !strings.HasPrefix(l.GetName(), "otel_scope_") {
					list = append(list, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
				}
			}
			slices.Sort(list)
			values[name+"{"+strings.Join(list, ",")+"}"] = m.Gauge.GetValue() + m.Counter.GetValue() + float64(m.Histogram.GetSampleCount())
		}
	}
	return values
}

// dashboard returns the queries of all panels and of the variables.
func dashboard(t *testing.T) (queries []string) {
	t.Helper()
	var d struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
		Templating struct {
			List []struct{ Name, Type, Query string }
		}
	}
	must.OK(t, json.Unmarshal([]byte(example.Code(t, "../../otellockkeeper/dashboard.json")), &d))
	for _, p := range d.Panels {
		if len(p.Targets) == 0 {
			t.Errorf("panel %q has no query", p.Title)
		}
		for _, target := range p.Targets {
			queries = append(queries, strings.NewReplacer("$__rate_interval", "5m", `job=~"$job"`, `job=~".*"`).Replace(target.Expr))
		}
	}
	for _, v := range d.Templating.List {
		if v.Type == "query" {
			m := regexp.MustCompile(`^label_values\((\w+), (\w+)\)$`).FindStringSubmatch(v.Query)
			if m == nil {
				t.Fatalf("variable %s: %s", v.Name, v.Query)
			}
			queries = append(queries, fmt.Sprintf("sum by (%s) (%s)", m[2], m[1]))
		}
	}
	if len(queries) < 4 {
		t.Errorf("the dashboard has %d queries", len(queries))
	}
	return queries
}

// alerts returns the queries of the alert rules.
func alerts(t *testing.T) (queries []string) {
	t.Helper()
	var rules struct {
		Groups []struct {
			Name  string
			Rules []struct {
				Alert, Expr, For    string
				Labels, Annotations map[string]string
			}
		}
	}
	must.OK(t, yaml.UnmarshalStrict([]byte(example.Code(t, "../../otellockkeeper/alerts.yaml")), &rules))
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			if r.Annotations["summary"] == "" {
				t.Errorf("alert %s has no summary", r.Alert)
			}
			if _, err := model.ParseDuration(r.For); err != nil && r.For != "" {
				t.Errorf("alert %s: %v", r.Alert, err)
			}
			queries = append(queries, r.Expr)
		}
	}
	if len(queries) < 4 {
		t.Errorf("%d alerts were found", len(queries))
	}
	return queries
}

// problems says what a query asks for that is not there: metrics, labels, and values of labels. Prometheus itself adds job and
// instance.
func problems(query string, families map[string]*dto.MetricFamily) (list []string) {
	expr, err := parser.ParseExpr(query)
	if err != nil {
		return []string{err.Error()}
	}
	found := map[string]map[string]bool{} // the labels of the metrics that were selected, and their values
	parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
		if v, ok := node.(*parser.VectorSelector); ok {
			of := labelsOf(v.Name, families)
			if of == nil {
				list = append(list, "no metric "+v.Name)
			}
			for _, m := range v.LabelMatchers {
				if m.Name == model.MetricNameLabel || of == nil {
					continue
				}
				if of[m.Name] == nil {
					list = append(list, v.Name+" has no label "+m.Name)
				} else if m.Type == labels.MatchEqual && !of[m.Name][m.Value] {
					list = append(list, fmt.Sprintf("%s has no %s", v.Name, m))
				}
			}
			maps.Copy(found, of)
		}
		return nil
	})
	if len(found) == 0 {
		return append(list, "it selects nothing")
	}
	parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
		if a, ok := node.(*parser.AggregateExpr); ok {
			for _, label := range a.Grouping {
				if found[label] == nil {
					list = append(list, "no label "+label)
				}
			}
		}
		return nil
	})
	return list
}

// labelsOf returns the labels of a metric with their values, or nil if there is no such metric.
func labelsOf(name string, families map[string]*dto.MetricFamily) map[string]map[string]bool {
	family, bucket := families[name], false
	for _, suffix := range []string{"_bucket", "_count", "_sum"} {
		base, ok := strings.CutSuffix(name, suffix)
		if h := families[base]; ok && h.GetType() == dto.MetricType_HISTOGRAM && h != nil {
			family, bucket = h, suffix == "_bucket"
		}
	}
	if family == nil || family.GetType() == dto.MetricType_HISTOGRAM && family.GetName() == name {
		return nil
	}
	all := map[string]map[string]bool{"job": {}, "instance": {}}
	if bucket {
		all[model.BucketLabel] = map[string]bool{}
	}
	for _, m := range family.Metric {
		for _, l := range m.Label {
			if all[l.GetName()] == nil {
				all[l.GetName()] = map[string]bool{}
			}
			all[l.GetName()][l.GetValue()] = true
		}
	}
	return all
}
