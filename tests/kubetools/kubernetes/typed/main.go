// Reads objects as JSON, one a line, and writes each as a typed Go client sends it: {"protobuf": base64, "json": object}.
// lab/tests/apiserver/typed_objects.jsonl is what it makes of lab/tests/apiserver/typed_objects.yaml; tools/typed-objects runs it.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"log"
	"os"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	plain "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"
)

type line struct {
	Protobuf []byte          `json:"protobuf"`
	JSON     json.RawMessage `json:"json"`
}

func main() {
	types := scheme.Scheme
	if err := apiextensions.AddToScheme(types); err != nil {
		log.Fatal(err)
	}
	metav1.AddToGroupVersion(types, schema.GroupVersion{Version: "v1"})
	read := serializer.NewCodecFactory(types, serializer.EnableStrict).UniversalDeserializer()
	binary := protobuf.NewSerializer(types, types)
	text := plain.NewSerializerWithOptions(plain.DefaultMetaFactory, types, types, plain.SerializerOptions{})
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<20)
	out := json.NewEncoder(os.Stdout)
	for in.Scan() {
		object, kind, err := read.Decode(in.Bytes(), nil, nil)
		if err != nil {
			log.Fatal(err)
		}
		object.GetObjectKind().SetGroupVersionKind(*kind)
		var encoded, shown bytes.Buffer
		if err := binary.Encode(object, &encoded); err != nil {
			log.Fatal(err)
		}
		if err := text.Encode(object, &shown); err != nil {
			log.Fatal(err)
		}
		if err := out.Encode(line{encoded.Bytes(), shown.Bytes()}); err != nil {
			log.Fatal(err)
		}
	}
}
