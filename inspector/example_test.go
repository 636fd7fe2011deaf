package inspector_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/inspector"
	"github.com/redis/go-redis/v9"
)

// The pages are mounted next to the others of a program's internal server. Everybody with a session may look, and operators
// may break locks.
func ExampleNew() {
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	defer rdb.Close()
	k, err := lockkeeper.New(rdb, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer k.Close()

	h, err := inspector.New(k, &inspector.Options{
		Title: "Locks of billing",
		Authorize: func(r *http.Request) error {
			if _, _, ok := r.BasicAuth(); !ok { // in a program: check its session
				return errors.New("sign in first")
			}
			return nil
		},
		AllowBreak: func(r *http.Request) (string, error) {
			user, _, _ := r.BasicAuth()
			if user != "operator" {
				return "", errors.New("only operators may break locks")
			}
			return user, nil
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer h.Close()

	mux := http.NewServeMux()
	mux.Handle("/locks/", http.StripPrefix("/locks", h))
	server := &http.Server{Addr: "127.0.0.1:8080", Handler: mux}
	server.RegisterOnShutdown(h.Close) // or Shutdown waits for pages that are open

	w := httptest.NewRecorder()
	mux.ServeHTTP(w, httptest.NewRequest("GET", "/locks/", nil)) // instead of server.ListenAndServe()
	fmt.Println(w.Code)
	// Output: 403
}
