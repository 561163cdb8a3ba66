#include "streambp/model/layers/value_memory.h"

namespace streambp {

void free_memory(const at::Tensor& tensor) noexcept {
  tensor.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(
      {nullptr, tensor.device()});  // its size stays: views are checked against it
}

void allocate_memory(const at::Tensor& tensor) {
  c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
  if (storage.data_ptr().get_context() != nullptr) return;
  storage.set_data_ptr_noswap(storage.allocator()->allocate(storage.nbytes()));
}

void move_memory(const at::Tensor& from, const at::Tensor& tensor) {
  c10::StorageImpl& source = *from.storage().unsafeGetStorageImpl();
  tensor.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(source.set_data_ptr({nullptr, from.device()}));
}

}  // namespace streambp
