// Cilium's own readers and writers, as programs that tests can talk to.
//
//	cilium-reader codecs            lines of {"kind","cluster","id","key","value"} on stdin, for each a line of
//	                                {"ok","error","seen"}: what Cilium makes of a record. The value of an endpoint
//	                                slice is in base64; of kind "write" its JSON, and seen what Cilium writes of it
//	cilium-reader operator FLAGS    the operator's side of a clustermesh: for each line on stdin a line of
//	                                {"clusters","services","exports"}: how it does, and what it has heard
//	cilium-reader kvstoremesh …     clustermesh-apiserver's own commands, unchanged
//	cilium-reader clustermesh …
package main

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"net/http/httptest"
	"os"
	"reflect"
	"strings"

	"github.com/cilium/hive/cell"
	"github.com/go-openapi/runtime"
	"github.com/spf13/cobra"

	restapi "github.com/cilium/cilium/api/v1/operator/server/restapi/cluster"
	"github.com/cilium/cilium/clustermesh-apiserver/cmd"
	mcsapi "github.com/cilium/cilium/pkg/clustermesh/mcsapi/types"
	"github.com/cilium/cilium/pkg/clustermesh/operator"
	"github.com/cilium/cilium/pkg/clustermesh/store"
	cmtypes "github.com/cilium/cilium/pkg/clustermesh/types"
	"github.com/cilium/cilium/pkg/clustermesh/types/endpointslice"
	"github.com/cilium/cilium/pkg/controller"
	"github.com/cilium/cilium/pkg/dial"
	"github.com/cilium/cilium/pkg/hive"
	"github.com/cilium/cilium/pkg/kvstore"
	kvstorestore "github.com/cilium/cilium/pkg/kvstore/store"
	"github.com/cilium/cilium/pkg/lock"
	"github.com/cilium/cilium/pkg/logging"
)

type line struct {
	Kind, Cluster, Key string
	ID                 uint32
	Value              string
}

func read(l line) (any, error) {
	switch l.Kind {
	case "services":
		k := store.KeyCreator(store.ClusterNameValidator(l.Cluster), store.NamespacedNameValidator(), store.ClusterIDValidator(&l.ID))()
		return k, k.Unmarshal(l.Key, []byte(l.Value))
	case "serviceexports":
		k := mcsapi.KeyCreator(mcsapi.ClusterNameValidator(l.Cluster), mcsapi.NamespacedNameValidator())()
		return k, k.Unmarshal(l.Key, []byte(l.Value))
	case "endpointslices":
		k := endpointslice.KeyCreator(endpointslice.ClusterNameValidator(l.Cluster), endpointslice.NamespacedNameValidator(), endpointslice.ClusterIDValidator(&l.ID))().(*endpointslice.ValidatingClusterEndpointSlice)
		value, err := base64.StdEncoding.DecodeString(l.Value)
		if err != nil {
			return nil, err
		}
		return &k.ClusterEndpointSlice, k.Unmarshal(l.Key, value)
	case "write":
		k := &endpointslice.ClusterEndpointSlice{}
		if err := json.Unmarshal([]byte(l.Value), k); err != nil {
			return nil, err
		}
		return k.Marshal()
	case "identities":
		return readIdentity(l)
	case "ip":
		return readAddress(l)
	}
	var c cmtypes.CiliumClusterConfig
	if err := json.Unmarshal([]byte(l.Value), &c); err != nil {
		return nil, err
	}
	return c, cmtypes.ClusterInfo{ID: 200, Name: "reader", MaxConnectedClusters: 255}.ValidateRemoteConfig(c)
}

// The names that the fields of a record have in JSON.
func fields(record any) []string {
	names := []string{}
	if k, ok := record.(*mcsapi.ValidatingMCSAPIServiceSpec); ok {
		of := reflect.TypeOf(k.MCSAPIServiceSpec)
		for n := range of.NumField() {
			name, _, _ := strings.Cut(of.Field(n).Tag.Get("json"), ",")
			names = append(names, name)
		}
	}
	return names
}

func codecs(*cobra.Command, []string) {
	in, out := bufio.NewScanner(os.Stdin), json.NewEncoder(os.Stdout)
	in.Buffer(nil, 4<<20)
	for in.Scan() {
		var l line
		if err := json.Unmarshal(in.Bytes(), &l); err != nil {
			panic(err)
		}
		seen, err := read(l)
		said := map[string]any{"ok": err == nil, "seen": seen, "fields": fields(seen)}
		if err != nil {
			said["error"] = err.Error()
		}
		out.Encode(said)
	}
}

// What the operator's hooks were told, by key.
type heard struct {
	lock.Mutex
	services map[string]*store.ClusterService
	exports  map[string]*mcsapi.MCSAPIServiceSpec
}

func note[T interface{ GetKeyName() string }](h *heard, into map[string]T, there bool) func(T) {
	return func(said T) {
		h.Lock()
		defer h.Unlock()
		if delete(into, said.GetKeyName()); there {
			into[said.GetKeyName()] = said
		}
	}
}

func status(api restapi.GetClusterHandler) json.RawMessage {
	into := httptest.NewRecorder()
	api.Handle(restapi.GetClusterParams{}).WriteResponse(into, runtime.JSONProducer())
	return into.Body.Bytes()
}

func follow(lc cell.Lifecycle, mesh operator.ClusterMesh, api restapi.GetClusterHandler, down hive.Shutdowner) {
	h := &heard{services: map[string]*store.ClusterService{}, exports: map[string]*mcsapi.MCSAPIServiceSpec{}}
	mesh.RegisterClusterServiceUpdateHook(note(h, h.services, true))
	mesh.RegisterClusterServiceDeleteHook(note(h, h.services, false))
	mesh.RegisterClusterServiceExportUpdateHook(note(h, h.exports, true))
	mesh.RegisterClusterServiceExportDeleteHook(note(h, h.exports, false))
	answer := func() {
		in, out := bufio.NewScanner(os.Stdin), json.NewEncoder(os.Stdout)
		for in.Scan() {
			h.Lock()
			out.Encode(map[string]any{"clusters": status(api), "services": h.services, "exports": h.exports})
			h.Unlock()
		}
		down.Shutdown()
	}
	lc.Append(cell.Hook{OnStart: func(cell.HookContext) error { go answer(); return nil }})
}

func operatorCommand() *cobra.Command {
	h := hive.New(
		cell.Config(cmtypes.DefaultClusterInfo),
		controller.Cell,
		kvstore.Cell(kvstore.DisabledBackendName),
		cell.Provide(func() dial.Resolver { return nil }),
		kvstorestore.Cell,
		operator.Cell,
		cell.Invoke(follow),
	)
	command := &cobra.Command{
		Use: "operator",
		RunE: func(*cobra.Command, []string) error {
			return h.Run(logging.DefaultSlogLogger)
		},
	}
	h.RegisterFlags(command.Flags())
	return command
}

func main() {
	cmd.RootCmd.AddCommand(&cobra.Command{Use: "codecs", Run: codecs}, operatorCommand())
	cmd.Execute()
}
